//! A keeper over a modelled store, and what its threads do.

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

use crate::error::Error;
use crate::hold::Hold;
use crate::name::LockName;
use crate::options::LeaseTerms;
use crate::queue::{Entered, Finished, Queue};
use crate::waiter::{Given, Unserved, WaitKind, Waiter};

/// One keeper over a store that knows one lock.
pub(crate) struct World {
    pub(crate) queue: Queue,
    /// Whether the store has granted the name.
    stored: Mutex<bool>,
    holders: AtomicU32,
    pub(crate) grants: Mutex<Vec<usize>>,
    max_handovers: u32,
    drops: Drops,
    /// Whether a lease is kept for the next guard.
    lingers: Lingers,
    /// The threads that release in the background.
    releasing: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// Who releases a lease that is not handed over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drops {
    /// The thread that held it.
    Wait,
    /// A thread of the keeper, while the one that held it goes on.
    InBackground,
    /// The same, and its first attempt fails.
    FailFirst,
}

/// Whether a lease is kept for the next guard.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lingers {
    No,
    /// It is, and serves each one.
    ForAll,
    /// It is, and serves nobody who comes.
    ForNone,
}

/// The outcome of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held,
    Busy,
    Failed,
    /// The store answered no thread.
    Silent,
}

impl World {
    pub(crate) fn new(max_handovers: u32) -> Arc<Self> {
        Self::with(max_handovers, Drops::Wait, Lingers::No)
    }

    pub(crate) fn with_drops(max_handovers: u32, drops: Drops) -> Arc<Self> {
        Self::with(max_handovers, drops, Lingers::No)
    }

    pub(crate) fn lingering(lingers: Lingers) -> Arc<Self> {
        Self::with(2, Drops::Wait, lingers)
    }

    fn with(max_handovers: u32, drops: Drops, lingers: Lingers) -> Arc<Self> {
        Arc::new(Self {
            queue: Queue::new(),
            stored: Mutex::new(false),
            holders: AtomicU32::new(0),
            grants: Mutex::new(Vec::new()),
            max_handovers,
            drops,
            lingers,
            releasing: Mutex::default(),
        })
    }

    pub(crate) fn enter(&self, kind: WaitKind) -> Entered {
        let takes = |_: &Hold| self.lingers == Lingers::ForAll;
        let entered = self.queue.enter(&LockName, LeaseTerms, kind, takes);
        if let Entered::Queued(_, Some(_)) = entered {
            self.release();
        }
        entered
    }

    /// The time of lingering leases is over.
    pub(crate) fn end_lingering(&self) {
        if !self.queue.take_lingering(0).is_empty() {
            self.release();
        }
    }

    /// The head asks the store, holds, and is done.
    pub(crate) fn acquire_as_head(self: &Arc<Self>, thread: usize) -> Outcome {
        let lease = self.grant();
        self.work(thread, &lease)
    }

    pub(crate) fn grant(&self) -> Arc<Hold> {
        let before = std::mem::replace(&mut *self.stored.lock().unwrap(), true);
        assert!(!before, "two heads asked the store at once");
        let lease = Arc::new(Hold::default());
        self.queue.hold(&LockName, Arc::clone(&lease), 0);
        lease
    }

    pub(crate) fn work(self: &Arc<Self>, thread: usize, lease: &Arc<Hold>) -> Outcome {
        let others = self.holders.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two hold at once");
        self.grants.lock().unwrap().push(thread);
        self.holders.fetch_sub(1, Ordering::SeqCst);
        self.finish(lease);
        Outcome::Held
    }

    pub(crate) fn finish(self: &Arc<Self>, lease: &Arc<Hold>) {
        let hand_over = || lease.handovers.fetch_add(1, Ordering::SeqCst) < self.max_handovers;
        let linger = || (self.lingers != Lingers::No && hand_over()).then_some(0);
        let finished = self.queue.finish(&LockName, lease, |_| hand_over(), linger);
        match finished {
            Finished::HandedOver | Finished::Lingering(_) => {}
            Finished::Detached => panic!("taken away from a hold that was not lost"),
            Finished::Release if self.drops == Drops::Wait => self.release(),
            Finished::Release => {
                let world = Arc::clone(self);
                let releasing = thread::spawn(move || {
                    if world.drops == Drops::FailFirst {
                        world.queue.fail(&LockName, &Error);
                    }
                    world.release();
                });
                self.releasing.lock().unwrap().push(releasing);
            }
        }
    }

    pub(crate) fn release(&self) {
        self.store_release();
        self.queue.released(&LockName);
    }

    pub(crate) fn store_release(&self) {
        *self.stored.lock().unwrap() = false;
    }

    pub(crate) fn use_given(self: &Arc<Self>, thread: usize, given: Given) -> Outcome {
        match given {
            Given::HeadPermit => self.acquire_as_head(thread),
            Given::Hold(lease) => self.work(thread, &lease),
            Given::Nothing(why) => unserved(&why),
        }
    }

    pub(crate) fn lock(self: &Arc<Self>, thread: usize, kind: WaitKind) -> Outcome {
        match self.enter(kind) {
            Entered::Given(given) => self.use_given(thread, given),
            Entered::Queued(waiter, _) => self.wait(thread, &waiter),
        }
    }

    pub(crate) fn wait(self: &Arc<Self>, thread: usize, waiter: &Waiter) -> Outcome {
        loop {
            if let Some(given) = waiter.wait(None) {
                return self.use_given(thread, given);
            }
        }
    }

    /// The wait is over right now, or was cancelled.
    pub(crate) fn give_up(self: &Arc<Self>, thread: usize, waiter: &Arc<Waiter>) -> Outcome {
        match self.queue.leave(&LockName, waiter) {
            Given::HeadPermit => {
                let why = self.queue.unserved(&LockName, waiter);
                self.queue.pass(&LockName, None);
                unserved(&why)
            }
            given => self.use_given(thread, given),
        }
    }

    pub(crate) fn assert_nothing_left(&self) {
        self.end_lingering();
        let releasing = std::mem::take(&mut *self.releasing.lock().unwrap());
        for thread in releasing {
            thread.join().unwrap();
        }
        self.assert_head();
        assert!(!*self.stored.lock().unwrap(), "the store still holds it");
    }

    /// Enters as the only thread there is.
    pub(crate) fn assert_head(&self) {
        let entered = self.enter(WaitKind::ThroughOutages);
        let is_head = matches!(entered, Entered::Given(Given::HeadPermit));
        assert!(is_head, "the name is in use");
    }

    /// Acquires the name as the only thread there is.
    pub(crate) fn held(&self) -> Arc<Hold> {
        self.assert_head();
        self.grant()
    }

    /// Enters the wait queue behind a holder or a head.
    pub(crate) fn queued(&self) -> Arc<Waiter> {
        match self.enter(WaitKind::ThroughOutages) {
            Entered::Queued(waiter, _) => waiter,
            Entered::Given(_) => panic!("the name should be in use"),
        }
    }
}

fn unserved(why: &Unserved) -> Outcome {
    match why {
        Unserved::Busy => Outcome::Busy,
        Unserved::Failed(Error) => Outcome::Failed,
        Unserved::Silent => Outcome::Silent,
    }
}
