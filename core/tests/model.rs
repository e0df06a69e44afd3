//! The queue under a model checker: the very file that the engine runs, on shuttle's primitives,
//! over many thousand schedules. A wait that never ends is a deadlock, and fails.
//!
//! Time-outs do not happen by themselves in a model; a thread that gives up calls `leave` at
//! whatever point the scheduler puts it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

// What the engine uses and this model does not.
#[allow(dead_code)]
#[path = "../src/engine/queue.rs"]
mod queue;

/// Stands in for `src/sync.rs`.
mod sync {
    pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    pub(crate) fn wait<'a, T>(
        condvar: &Condvar,
        guard: MutexGuard<'a, T>,
        limit: Option<std::time::Duration>,
    ) -> MutexGuard<'a, T> {
        assert!(limit.is_none(), "time does not pass in a model");
        condvar.wait(guard).unwrap()
    }
}

use queue::{Entered, Finished, Given, Key, Left, Queue, Ticket, Unserved};
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

#[derive(Clone, PartialEq, Eq)]
struct Name;

impl Key for Name {
    fn hash64(&self) -> u64 {
        1 << 40
    }
}

/// A lease of the modelled store; counts its hand-overs.
struct Lease(AtomicU32);

/// One keeper over a store that knows one lock.
struct World {
    queue: Queue<Name, Lease, (), &'static str>,
    /// Whether the store has granted the name.
    stored: Mutex<bool>,
    inside: AtomicU32,
    grants: Mutex<Vec<usize>>,
    most_handovers: u32,
}

/// What one thread got.
#[derive(Debug, PartialEq, Eq)]
enum Got {
    Held,
    Busy,
    Failed,
    /// The store answered nobody.
    Silent,
}

impl World {
    fn new(most_handovers: u32) -> Arc<Self> {
        Arc::new(Self {
            queue: Queue::new(2),
            stored: Mutex::new(false),
            inside: AtomicU32::new(0),
            grants: Mutex::new(Vec::new()),
            most_handovers,
        })
    }

    /// The head asks the store, holds, and is done.
    fn ask(&self, who: usize) -> Got {
        let before = std::mem::replace(&mut *self.stored.lock().unwrap(), true);
        assert!(!before, "two heads asked the store at once");
        let lease = Arc::new(Lease(AtomicU32::new(0)));
        self.queue.hold(&Name, Arc::clone(&lease), 0);
        self.work(who, &lease)
    }

    fn work(&self, who: usize, lease: &Arc<Lease>) -> Got {
        let others = self.inside.fetch_add(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two hold at once");
        self.grants.lock().unwrap().push(who);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.finish(lease);
        Got::Held
    }

    fn finish(&self, lease: &Arc<Lease>) {
        let finished = self.queue.finish(&Name, lease, |()| {
            lease.0.fetch_add(1, Ordering::SeqCst) < self.most_handovers
        });
        match finished {
            Finished::HandedOver => {}
            Finished::Detached => panic!("taken away from a hold that was not lost"),
            Finished::Release => {
                self.store_release();
                self.queue.pass(&Name, None);
            }
        }
    }

    fn store_release(&self) {
        *self.stored.lock().unwrap() = false;
    }

    fn given(&self, who: usize, given: Given<Lease, &'static str>) -> Got {
        match given {
            Given::HeadPermit => self.ask(who),
            Given::Hold(lease) => self.work(who, &lease),
            Given::Busy => Got::Busy,
            Given::Failed(_) => Got::Failed,
        }
    }

    fn lock(&self, who: usize, once: bool) -> Got {
        match self.queue.enter(&Name, (), once) {
            Entered::HeadPermit => self.ask(who),
            Entered::Busy => Got::Busy,
            Entered::Queued(ticket) => self.wait(who, &ticket),
        }
    }

    fn wait(&self, who: usize, ticket: &Ticket<Lease, (), &'static str>) -> Got {
        loop {
            if let Some(given) = ticket.wait(None) {
                return self.given(who, given);
            }
        }
    }

    /// The wait is over right now, or was cancelled.
    fn give_up(&self, who: usize, ticket: &Ticket<Lease, (), &'static str>) -> Got {
        match self.queue.leave(&Name, ticket) {
            Left::Given(Given::HeadPermit) => unserved(&self.queue.decline(&Name, ticket)),
            Left::Given(given) => self.given(who, given),
            Left::Gone(why) => unserved(&why),
        }
    }

    fn assert_over(&self) {
        let free = matches!(self.queue.enter(&Name, (), true), Entered::HeadPermit);
        assert!(free, "the name stayed behind");
        assert!(!*self.stored.lock().unwrap(), "the store still holds it");
    }

    /// Stands in line behind a holder.
    fn queued(&self) -> Ticket<Lease, (), &'static str> {
        match self.queue.enter(&Name, (), false) {
            Entered::Queued(ticket) => ticket,
            _ => panic!("the name should be in use"),
        }
    }

    /// Takes the name as the only thread there is.
    fn held(&self) -> Arc<Lease> {
        assert!(matches!(
            self.queue.enter(&Name, (), false),
            Entered::HeadPermit
        ));
        *self.stored.lock().unwrap() = true;
        let lease = Arc::new(Lease(AtomicU32::new(0)));
        self.queue.hold(&Name, Arc::clone(&lease), 0);
        lease
    }
}

fn unserved(why: &Unserved<&'static str>) -> Got {
    match why {
        Unserved::Busy => Got::Busy,
        Unserved::Failed(_) => Got::Failed,
        Unserved::Silent => Got::Silent,
    }
}

/// Every schedule of a small model as far as the count goes, then random and adversarial ones.
fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_dfs(model.clone(), Some(10_000));
    shuttle::check_random(model.clone(), 2_000);
    shuttle::check_pct(model, 2_000, 3);
}

fn spawn<T: Send + 'static>(
    world: &Arc<World>,
    body: impl FnOnce(&World) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

#[test]
fn exclusion_and_no_lost_wake_up() {
    for most_handovers in [0, 1, 9] {
        check(move || {
            let world = World::new(most_handovers);
            let threads: Vec<_> = (0..3)
                .map(|who| spawn(&world, move |world| world.lock(who, false)))
                .collect();
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Got::Held);
            }
            assert_eq!(world.grants.lock().unwrap().len(), 3);
            world.assert_over();
        });
    }
}

#[test]
fn first_come_first_served() {
    for most_handovers in [0, 1, 9] {
        check(move || {
            let world = World::new(most_handovers);
            let lease = world.held();
            let threads: Vec<_> = (0..3)
                .map(|who| {
                    let ticket = world.queued();
                    spawn(&world, move |world| world.wait(who, &ticket))
                })
                .collect();
            world.finish(&lease);
            for thread in threads {
                assert_eq!(thread.join().unwrap(), Got::Held);
            }
            assert_eq!(*world.grants.lock().unwrap(), [0, 1, 2]);
            world.assert_over();
        });
    }
}

#[test]
fn the_wait_ends_while_the_lease_is_handed_over() {
    for most_handovers in [0, 9] {
        check(move || {
            let world = World::new(most_handovers);
            let lease = world.held();
            let (first, second) = (world.queued(), world.queued());
            let first = spawn(&world, move |world| world.give_up(1, &first));
            let second = spawn(&world, move |world| world.wait(2, &second));
            world.finish(&lease);
            assert!(matches!(first.join().unwrap(), Got::Held | Got::Busy));
            assert_eq!(second.join().unwrap(), Got::Held);
            world.assert_over();
        });
    }
}

#[test]
fn a_cancel_while_the_lease_is_handed_over() {
    check(|| {
        let world = World::new(9);
        let lease = world.held();
        let ticket = world.queued();
        let unparked = ticket.clone();
        let cancel = thread::spawn(move || unparked.unpark());
        // Wakes by the unpark or by the hand-over; in the first case it gives up, whatever comes.
        let waiter = spawn(&world, move |world| match ticket.wait(None) {
            Some(given) => world.given(1, given),
            None => world.give_up(1, &ticket),
        });
        world.finish(&lease);
        cancel.join().unwrap();
        waiter.join().unwrap();
        world.assert_over();
    });
}

#[test]
fn a_poke_alone_wakes() {
    check(|| {
        let world = World::new(9);
        let lease = world.held();
        let ticket = world.queued();
        let unparked = ticket.clone();
        let cancel = thread::spawn(move || unparked.unpark());
        assert!(ticket.wait(None).is_none());
        assert_eq!(world.give_up(1, &ticket), Got::Busy);
        cancel.join().unwrap();
        world.finish(&lease);
        world.assert_over();
    });
}

#[test]
fn one_attempt_never_hangs_and_never_lies() {
    check(|| {
        let world = World::new(9);
        let threads: Vec<_> = (0..3)
            .map(|who| spawn(&world, move |world| world.lock(who, who > 0)))
            .collect();
        let got: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        assert_eq!(got[0], Got::Held, "the one that waits gets it");
        assert!(got.iter().all(|got| matches!(got, Got::Held | Got::Busy)));
        world.assert_over();
    });
}

#[test]
fn a_store_that_fails_is_not_busy() {
    check(|| {
        let world = World::new(9);
        head_of(&world);
        let once = spawn(&world, |world| world.lock(1, true));
        let head = spawn(&world, |world| world.queue.pass(&Name, Some("gone")));
        head.join().unwrap();
        // Failed with the head, or came later and asked for itself.
        assert!(matches!(once.join().unwrap(), Got::Failed | Got::Held));
        world.assert_over();
    });
}

/// Enters as the head that waits for the store's first answer.
fn head_of(world: &Arc<World>) {
    assert!(matches!(
        world.queue.enter(&Name, (), false),
        Entered::HeadPermit
    ));
}

#[test]
fn behind_a_head_without_an_answer_a_wait_that_ends_is_not_busy() {
    check(|| {
        let world = World::new(9);
        head_of(&world);
        let waiters: Vec<_> = (0..2)
            .map(|who| {
                let ticket = world.queued();
                spawn(&world, move |world| world.give_up(who, &ticket))
            })
            .collect();
        // The head steps down without an answer: it was cancelled.
        let head = spawn(&world, |world| world.queue.pass(&Name, None));
        head.join().unwrap();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Got::Silent);
        }
        world.assert_over();
    });
}

#[test]
fn a_wait_that_ends_as_the_head_fails_is_not_busy() {
    check(|| {
        let world = World::new(9);
        head_of(&world);
        let waiters: Vec<_> = (0..2)
            .map(|who| {
                let ticket = world.queued();
                spawn(&world, move |world| world.give_up(who, &ticket))
            })
            .collect();
        let head = spawn(&world, |world| world.queue.pass(&Name, Some("gone")));
        head.join().unwrap();
        for waiter in waiters {
            let got = waiter.join().unwrap();
            assert!(matches!(got, Got::Silent | Got::Failed), "{got:?}");
        }
        world.assert_over();
    });
}

#[test]
fn a_wait_that_ends_is_busy_only_once_a_holder_was_seen() {
    check(|| {
        let world = World::new(0);
        head_of(&world);
        let seen = Arc::new(Mutex::new(false));
        let waiters: Vec<_> = (0..2)
            .map(|who| {
                let (ticket, seen) = (world.queued(), Arc::clone(&seen));
                spawn(&world, move |world| {
                    let got = world.give_up(who, &ticket);
                    assert!(got != Got::Busy || *seen.lock().unwrap(), "nobody held it");
                    got
                })
            })
            .collect();
        let head = {
            let (world, seen) = (Arc::clone(&world), Arc::clone(&seen));
            thread::spawn(move || {
                *seen.lock().unwrap() = true;
                world.ask(9)
            })
        };
        assert_eq!(head.join().unwrap(), Got::Held);
        for waiter in waiters {
            let got = waiter.join().unwrap();
            assert!(matches!(got, Got::Silent | Got::Busy), "{got:?}");
        }
        world.assert_over();
    });
}

#[test]
fn a_lost_hold_is_passed_on_once() {
    check(|| {
        let world = World::new(0);
        let lease = world.held();
        let waiters: Vec<_> = (0..2)
            .map(|who| {
                let ticket = world.queued();
                spawn(&world, move |world| world.wait(who, &ticket))
            })
            .collect();
        let lost = Arc::clone(&lease);
        // The store has given up the lease, so the next head may be granted.
        world.store_release();
        let watch = spawn(&world, move |world| world.queue.detach(&Name, &lost));
        match world.queue.finish(&Name, &lease, |()| false) {
            Finished::Detached => {}
            Finished::Release => world.queue.pass(&Name, None),
            other => panic!("two wait, and it says {other:?}"),
        }
        watch.join().unwrap();
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Got::Held);
        }
        world.assert_over();
    });
}

#[test]
fn the_guard_is_dropped_while_the_keeper_is() {
    check(|| {
        let world = World::new(9);
        let lease = world.held();
        let of = Arc::downgrade(&world);
        let waiter = {
            let ticket = world.queued();
            spawn(&world, move |world| world.wait(1, &ticket))
        };
        let guard = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.finish(&lease))
        };
        // The watching thread looks at what is there, if anything still is.
        let watch = thread::spawn(move || {
            if let Some(world) = of.upgrade() {
                world.queue.scan(u64::MAX, |_| u64::MAX);
            }
        });
        drop(world);
        guard.join().unwrap();
        watch.join().unwrap();
        assert_eq!(waiter.join().unwrap(), Got::Held);
    });
}
