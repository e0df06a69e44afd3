//! A keeper over a modelled store, and what its threads do.

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::mpsc::channel;
use shuttle::sync::{Arc, Condvar, Mutex};
use shuttle::thread;

use crate::error::Error;
use crate::hold::Hold;
use crate::key::Key;
use crate::mode::Mode;
use crate::name::LockName;
use crate::name_state::Finished;
use crate::options::LeaseTerms;
use crate::queue::{Entered, Queue};
use crate::waiter::{Given, Unserved, WaitKind, Waiter};

/// The lock of the only name.
pub(crate) const KEY: Key<'static> = Key::new(&LockName, Mode::Exclusive);

/// One keeper over a store that knows one name.
pub(crate) struct World {
    pub(crate) queue: Queue,
    store: Mutex<Holders>,
    /// Notified when the store's holders change.
    changed: Condvar,
    /// The guards that live.
    guards: Mutex<Holders>,
    pub(crate) grants: Mutex<Vec<usize>>,
    drops: Drops,
    /// The threads that release in the background.
    releasing: Mutex<Vec<thread::JoinHandle<()>>>,
}

/// How many hold a name.
#[derive(Default)]
struct Holders {
    exclusive: u32,
    shared: u32,
    permits: u32,
}

impl Holders {
    fn of(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
            Mode::Permit { .. } => &mut self.permits,
        }
    }

    /// Returns whether these may hold it beside each other, and one more in `mode`.
    fn admit(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => self.exclusive == 0 && self.shared == 0,
            Mode::Shared => self.exclusive == 0,
            Mode::Permit { limit } => self.permits < limit,
        }
    }
}

/// Who releases a lease that is not handed over.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drops {
    /// The thread that held it.
    Wait,
    /// A thread of the keeper, while the one that held it goes on.
    InBackground,
    /// A thread of the keeper, and its first attempt fails.
    FailFirst,
    /// A thread of the keeper, after the attempt of the one that held it, which waits for the answer.
    HolderWaits,
}

/// The outcome of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held,
    Busy,
    Failed,
    /// The store answered no thread.
    Silent,
    /// Permits are held under another limit.
    Mismatch,
}

impl World {
    pub(crate) fn new(max_handovers: u32) -> Arc<Self> {
        Self::with_drops(max_handovers, Drops::Wait)
    }

    pub(crate) fn with_drops(max_handovers: u32, drops: Drops) -> Arc<Self> {
        let hand_over = move |lease: &Hold, terms: LeaseTerms| {
            let serves = lease.mode == terms.mode;
            let before = lease.handovers.load(Ordering::SeqCst);
            if !serves || before >= max_handovers {
                return None;
            }
            lease.handovers.store(before + 1, Ordering::SeqCst);
            Some(before + 1)
        };
        Arc::new(Self {
            queue: Queue::new(Box::new(hand_over)),
            store: Mutex::default(),
            changed: Condvar::new(),
            guards: Mutex::default(),
            grants: Mutex::new(Vec::new()),
            drops,
            releasing: Mutex::default(),
        })
    }

    pub(crate) fn enter(&self, mode: Mode, kind: WaitKind) -> Entered {
        self.queue
            .enter(Key::new(&LockName, mode), LeaseTerms { mode }, kind)
    }

    /// The head asks the store, holds, and is done.
    pub(crate) fn acquire_as_head(self: &Arc<Self>, thread: usize, mode: Mode) -> Outcome {
        let lease = self.grant(mode);
        self.work(thread, &lease, 0)
    }

    /// Waits in the store until that grants the name.
    pub(crate) fn grant(&self, mode: Mode) -> Arc<Hold> {
        let key = Key::new(&LockName, mode);
        let mut store = self.store.lock().unwrap();
        while !store.admit(mode) {
            // This process has a reason to ask: its own shared leases.
            let is_own = mode == Mode::Exclusive && store.shared > 0;
            assert!(is_own, "two heads asked the store at once");
            drop(store);
            self.queue.contended(key);
            store = self.store.lock().unwrap();
            if !store.admit(mode) {
                store = self.changed.wait(store).unwrap();
            }
        }
        *store.of(mode) += 1;
        drop(store);
        let handovers = AtomicU32::new(0);
        let lease = Arc::new(Hold { mode, handovers });
        self.queue.hold(key, Arc::clone(&lease), 0);
        lease
    }

    pub(crate) fn work(self: &Arc<Self>, thread: usize, lease: &Arc<Hold>, number: u32) -> Outcome {
        let mut guards = self.guards.lock().unwrap();
        assert!(guards.admit(lease.mode), "it is held already");
        *guards.of(lease.mode) += 1;
        drop(guards);
        self.grants.lock().unwrap().push(thread);
        *self.guards.lock().unwrap().of(lease.mode) -= 1;
        self.finish(lease, number);
        Outcome::Held
    }

    pub(crate) fn finish(self: &Arc<Self>, lease: &Arc<Hold>, number: u32) {
        let key = Key::new(&LockName, lease.mode);
        match self.queue.finish(key, lease, number) {
            Finished::HandedOver => {}
            Finished::Detached => panic!("taken away from a hold that was not lost"),
            Finished::Release if self.drops == Drops::Wait => self.release(lease),
            Finished::Release => {
                let (world, lease) = (Arc::clone(self), Arc::clone(lease));
                let (holder, answer) = channel();
                let releasing = thread::spawn(move || {
                    if world.drops != Drops::InBackground {
                        world.queue.fail(KEY, true, &Error);
                    }
                    world.release(&lease);
                    let _ = holder.send(());
                });
                self.releasing.lock().unwrap().push(releasing);
                if self.drops == Drops::HolderWaits {
                    answer.recv().unwrap();
                }
            }
        }
    }

    pub(crate) fn release(&self, lease: &Hold) {
        self.store_release(lease.mode);
        self.queue.released(Key::new(&LockName, lease.mode));
    }

    pub(crate) fn store_release(&self, mode: Mode) {
        *self.store.lock().unwrap().of(mode) -= 1;
        self.changed.notify_all();
    }

    pub(crate) fn use_given(self: &Arc<Self>, thread: usize, mode: Mode, given: Given) -> Outcome {
        match given {
            Given::HeadPermit => self.acquire_as_head(thread, mode),
            Given::Hold(lease, number) => self.work(thread, &lease, number),
            Given::Nothing(why) => unserved(&why),
        }
    }

    pub(crate) fn lock(self: &Arc<Self>, thread: usize, kind: WaitKind) -> Outcome {
        self.lock_in(Mode::Exclusive, thread, kind)
    }

    pub(crate) fn lock_in(self: &Arc<Self>, mode: Mode, thread: usize, kind: WaitKind) -> Outcome {
        match self.enter(mode, kind) {
            Entered::Given(given) => self.use_given(thread, mode, given),
            Entered::Queued(waiter) => self.wait(thread, &waiter),
        }
    }

    pub(crate) fn wait(self: &Arc<Self>, thread: usize, waiter: &Waiter) -> Outcome {
        loop {
            if let Some(given) = waiter.wait(None) {
                return self.use_given(thread, waiter.terms.mode, given);
            }
        }
    }

    /// The wait is over right now, or was cancelled.
    pub(crate) fn give_up(self: &Arc<Self>, thread: usize, waiter: &Arc<Waiter>) -> Outcome {
        let mode = waiter.terms.mode;
        let key = Key::new(&LockName, mode);
        match self.queue.leave(key, waiter) {
            Given::HeadPermit => {
                let why = self.queue.unserved(key, waiter);
                self.queue.pass(key, None);
                unserved(&why)
            }
            given => self.use_given(thread, mode, given),
        }
    }

    pub(crate) fn assert_nothing_left(&self) {
        let releasing = std::mem::take(&mut *self.releasing.lock().unwrap());
        for thread in releasing {
            thread.join().unwrap();
        }
        for mode in [Mode::Exclusive, Mode::Permit { limit: 1 }] {
            self.assert_head_in(mode);
            let store = self.store.lock().unwrap();
            assert!(store.admit(mode), "the store still holds it");
        }
    }

    /// Enters as the only thread there is.
    pub(crate) fn assert_head(&self) {
        self.assert_head_in(Mode::Exclusive);
    }

    fn assert_head_in(&self, mode: Mode) {
        let entered = self.enter(mode, WaitKind::ThroughOutages);
        let is_head = matches!(entered, Entered::Given(Given::HeadPermit));
        assert!(is_head, "the name is in use");
    }

    /// Acquires the name as the only thread there is.
    pub(crate) fn held(&self) -> Arc<Hold> {
        self.held_in(Mode::Exclusive)
    }

    pub(crate) fn held_in(&self, mode: Mode) -> Arc<Hold> {
        self.assert_head_in(mode);
        self.grant(mode)
    }

    /// Enters the wait queue behind a holder or a head.
    pub(crate) fn queued(&self) -> Arc<Waiter> {
        self.queued_in(Mode::Exclusive)
    }

    pub(crate) fn queued_in(&self, mode: Mode) -> Arc<Waiter> {
        match self.enter(mode, WaitKind::ThroughOutages) {
            Entered::Queued(waiter) => waiter,
            Entered::Given(_) => panic!("the name should be in use"),
        }
    }
}

fn unserved(why: &Unserved) -> Outcome {
    match why {
        Unserved::Busy | Unserved::Freed => Outcome::Busy,
        Unserved::Failed(Error) => Outcome::Failed,
        Unserved::Silent => Outcome::Silent,
        Unserved::LimitMismatch { .. } => Outcome::Mismatch,
    }
}
