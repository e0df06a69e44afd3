//! The queues of names and of requests under a model checker: the files that the engine runs, on shuttle's
//! primitives, over many thousand schedules. A wait that never ends is a deadlock, and fails.
//!
//! Time-outs do not happen by themselves in a model; a thread that gives up calls `leave` at
//! whatever point the scheduler puts it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

// The engine uses more of it than this model.
#[allow(dead_code)]
#[path = "../../src/engine/queue.rs"]
mod queue;

#[path = "../../src/engine/holds.rs"]
mod holds;

// The engine uses more of it than this model.
#[allow(dead_code)]
#[path = "../../src/engine/key.rs"]
mod key;

#[path = "../../src/engine/name_state.rs"]
mod name_state;

// The engine uses more of it than this model.
#[allow(dead_code)]
#[path = "../../src/engine/waiter.rs"]
mod waiter;

// The engine uses more of it than this model.
#[allow(dead_code)]
#[path = "../../src/engine/travel/request_queue.rs"]
mod travel;

mod batches;
mod modes;
mod names;
mod numbers;
mod owed;
mod world;

/// Stands in for `src/sync.rs`.
mod sync {
    pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard};

    pub(crate) const SHARDS: usize = 2;

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

/// Stands in for `src/name.rs`: there is one name.
mod name {
    #[derive(Clone, PartialEq, Eq)]
    pub(crate) struct LockName;

    impl LockName {
        pub(crate) fn hash64(&self) -> u64 {
            1 << 40
        }
    }
}

/// Stands in for `src/mode.rs`.
mod mode {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Mode {
        Exclusive,
        Shared,
        Permit { limit: u32 },
    }

    impl Mode {
        pub(crate) const fn is_permit(self) -> bool {
            matches!(self, Mode::Permit { .. })
        }
    }
}

/// Stands in for `src/engine/hold.rs`: a lease of the modelled store, which counts its hand-overs.
mod hold {
    pub(crate) struct Hold {
        pub(crate) mode: crate::mode::Mode,
        pub(crate) handovers: shuttle::sync::atomic::AtomicU32,
    }

    impl Hold {
        pub(crate) fn end_guard(&self, _number: u32) {}
    }
}

/// Stands in for `src/options.rs`.
mod options {
    #[derive(Clone, Copy)]
    pub(crate) struct LeaseTerms {
        pub(crate) mode: crate::mode::Mode,
    }
}

/// Stands in for `src/error.rs`.
mod error {
    #[derive(Clone)]
    pub(crate) struct Error;
}

use error::Error;
use mode::Mode;
use name_state::Finished;
use queue::Entered;
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use waiter::WaitKind;
use world::{Drops, KEY, Outcome, World};

/// Runs every schedule of a small model as far as the count goes, then random and adversarial ones.
fn check(model: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_dfs(model.clone(), Some(10_000));
    shuttle::check_random(model.clone(), 2_000);
    shuttle::check_pct(model, 2_000, 3);
}

/// Checks a model in worlds of their own, one for each of these limits of hand-overs.
fn check_worlds(
    max_handovers: &[u32],
    model: impl Fn(&Arc<World>) + Send + Sync + Clone + 'static,
) {
    for max_handovers in max_handovers {
        check(settled(*max_handovers, Drops::Wait, model.clone()));
    }
}

/// Returns the model in a new world, with a check that it leaves nothing there.
fn settled(
    max_handovers: u32,
    drops: Drops,
    model: impl Fn(&Arc<World>) + Send + Sync + Clone + 'static,
) -> impl Fn() + Send + Sync + Clone + 'static {
    move || {
        let world = World::with_drops(max_handovers, drops);
        model(&world);
        world.assert_nothing_left();
    }
}

type Thread = thread::JoinHandle<Outcome>;

fn spawn<T: Send + 'static>(
    world: &Arc<World>,
    body: impl FnOnce(&Arc<World>) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

/// Starts `count` threads that wait in the queue, in order, until they hold the name.
fn spawn_waiting(world: &Arc<World>, count: usize) -> Vec<Thread> {
    let wait = |thread| {
        let waiter = world.queued();
        spawn(world, move |world| world.wait(thread, &waiter))
    };
    (0..count).map(wait).collect()
}

/// Starts two threads that enter the queue and give up, at any time.
fn spawn_giving_up(world: &Arc<World>) -> Vec<Thread> {
    let give_up = |thread| {
        let waiter = world.queued();
        spawn(world, move |world| world.give_up(thread, &waiter))
    };
    (0..2).map(give_up).collect()
}

fn assert_outcomes(threads: Vec<Thread>, allowed: &[Outcome]) {
    for thread in threads {
        let outcome = thread.join().unwrap();
        assert!(allowed.contains(&outcome), "{outcome:?}");
    }
}

#[test]
fn one_thread_holds_at_a_time_and_no_wake_up_is_lost() {
    check_worlds(&[0, 1, 9], |world| {
        let lock = |thread| {
            spawn(world, move |world| {
                world.lock(thread, WaitKind::ThroughOutages)
            })
        };
        assert_outcomes((0..3).map(lock).collect(), &[Outcome::Held]);
        assert_eq!(world.grants.lock().unwrap().len(), 3);
    });
}

#[test]
fn name_is_not_requested_before_its_release_in_the_background_is_finished() {
    for drops in [Drops::InBackground, Drops::FailFirst, Drops::HolderWaits] {
        check(settled(0, drops, move |world| {
            let lease = world.held();
            let waiters = spawn_waiting(world, 1);
            let late = spawn(world, |world| world.lock(1, WaitKind::ThroughOutages));
            world.finish(&lease, 0);
            assert_outcomes(waiters, &[Outcome::Held]);
            assert_outcomes(vec![late], &[Outcome::Held]);
        }));
    }
}

#[test]
fn attempt_behind_a_release_in_the_background_is_not_busy() {
    let cases: [(_, &[Outcome]); 3] = [
        (Drops::InBackground, &[Outcome::Held]),
        (Drops::FailFirst, &[Outcome::Held, Outcome::Failed]),
        (Drops::HolderWaits, &[Outcome::Held, Outcome::Failed]),
    ];
    for (drops, allowed) in cases {
        check(settled(0, drops, move |world| {
            let lease = world.held();
            world.finish(&lease, 0);
            let attempt = |kind| spawn(world, move |world| world.lock(1, kind));
            let kinds = [WaitKind::SingleAttempt, WaitKind::UntilFailure];
            let [single, waiting] = kinds.map(attempt);
            let mut single_allowed = allowed.to_vec();
            // The other thread may hold it by then.
            single_allowed.push(Outcome::Busy);
            assert_outcomes(vec![single], &single_allowed);
            assert_outcomes(vec![waiting], allowed);
        }));
    }
}

#[test]
fn wait_that_ends_during_a_release_in_the_background_is_not_busy() {
    check(settled(0, Drops::FailFirst, |world| {
        let lease = world.held();
        world.finish(&lease, 0);
        let late = spawn(world, |world| {
            match world.enter(Mode::Exclusive, WaitKind::ThroughOutages) {
                Entered::Given(given) => world.use_given(1, Mode::Exclusive, given),
                Entered::Queued(waiter) => world.give_up(1, &waiter),
            }
        });
        assert_outcomes(
            vec![late],
            &[Outcome::Held, Outcome::Failed, Outcome::Silent],
        );
    }));
}

#[test]
fn first_come_first_served() {
    check_worlds(&[0, 1, 9], |world| {
        let lease = world.held();
        let threads = spawn_waiting(world, 3);
        world.finish(&lease, 0);
        assert_outcomes(threads, &[Outcome::Held]);
        assert_eq!(*world.grants.lock().unwrap(), [0, 1, 2]);
    });
}

#[test]
fn wait_ends_while_the_lease_is_handed_over() {
    check_worlds(&[0, 9], |world| {
        let lease = world.held();
        let (first, second) = (world.queued(), world.queued());
        let first = spawn(world, move |world| world.give_up(1, &first));
        let second = spawn(world, move |world| world.wait(2, &second));
        world.finish(&lease, 0);
        assert_outcomes(vec![first], &[Outcome::Held, Outcome::Busy]);
        assert_outcomes(vec![second], &[Outcome::Held]);
    });
}

#[test]
fn cancel_while_the_lease_is_handed_over() {
    check_worlds(&[9], |world| {
        let lease = world.held();
        let waiter = world.queued();
        let unparked = Arc::clone(&waiter);
        let cancel = thread::spawn(move || unparked.unpark());
        // It wakes by the unpark or by the hand-over. After the unpark it gives up in any case.
        let thread = spawn(world, move |world| match waiter.wait(None) {
            Some(given) => world.use_given(1, Mode::Exclusive, given),
            None => world.give_up(1, &waiter),
        });
        world.finish(&lease, 0);
        cancel.join().unwrap();
        thread.join().unwrap();
    });
}

#[test]
fn unpark_alone_wakes_a_waiter() {
    check_worlds(&[9], |world| {
        let lease = world.held();
        let waiter = world.queued();
        let unparked = Arc::clone(&waiter);
        let cancel = thread::spawn(move || unparked.unpark());
        assert!(waiter.wait(None).is_none());
        assert_eq!(world.give_up(1, &waiter), Outcome::Busy);
        cancel.join().unwrap();
        world.finish(&lease, 0);
    });
}

#[test]
fn single_attempt_always_ends_with_the_truth() {
    check_worlds(&[9], |world| {
        let lock = |thread| {
            let kind = match thread {
                0 => WaitKind::ThroughOutages,
                _ => WaitKind::SingleAttempt,
            };
            spawn(world, move |world| world.lock(thread, kind))
        };
        let mut threads: Vec<_> = (0..3).map(lock).collect();
        let single_attempts = threads.split_off(1);
        assert_outcomes(threads, &[Outcome::Held]);
        assert_outcomes(single_attempts, &[Outcome::Held, Outcome::Busy]);
    });
}

#[test]
fn failing_store_is_not_busy() {
    check_worlds(&[9], |world| {
        world.assert_head();
        let single_attempt = spawn(world, |world| world.lock(1, WaitKind::SingleAttempt));
        world.queue.pass(KEY, Some(Error));
        // It fails with the head, or comes later and asks the store itself.
        assert_outcomes(vec![single_attempt], &[Outcome::Failed, Outcome::Held]);
    });
}

#[test]
fn head_that_fails_and_goes_on_ends_the_waits_that_ride_no_outage_out() {
    check_worlds(&[9], |world| {
        world.assert_head();
        let lock = |(thread, kind)| spawn(world, move |world| world.lock(thread, kind));
        let kinds = [WaitKind::UntilFailure, WaitKind::ThroughOutages];
        let mut threads: Vec<_> = kinds.into_iter().enumerate().map(lock).collect();
        world.queue.fail(KEY, false, &Error);
        assert_eq!(world.acquire_as_head(9, Mode::Exclusive), Outcome::Held);
        assert_outcomes(threads.split_off(1), &[Outcome::Held]);
        assert_outcomes(threads, &[Outcome::Failed, Outcome::Held]);
    });
}

#[test]
fn wait_that_ends_while_the_head_is_cancelled_or_the_store_fails_is_not_busy() {
    let cases: [(_, &[Outcome]); 2] = [
        (None, &[Outcome::Silent]),
        (Some(Error), &[Outcome::Silent, Outcome::Failed]),
    ];
    for (store_error, allowed) in cases {
        check_worlds(&[9], move |world| {
            world.assert_head();
            let threads = spawn_giving_up(world);
            world.queue.pass(KEY, store_error.clone());
            assert_outcomes(threads, allowed);
        });
    }
}

#[test]
fn wait_that_ends_is_busy_only_once_a_holder_was_seen() {
    check_worlds(&[0], |world| {
        world.assert_head();
        let is_held = Arc::new(Mutex::new(false));
        let give_up = |thread| {
            let (waiter, is_held) = (world.queued(), Arc::clone(&is_held));
            spawn(world, move |world| {
                let outcome = world.give_up(thread, &waiter);
                let is_true = outcome != Outcome::Busy || *is_held.lock().unwrap();
                assert!(is_true, "no thread held it");
                outcome
            })
        };
        let threads: Vec<_> = (0..2).map(give_up).collect();
        *is_held.lock().unwrap() = true;
        assert_eq!(world.acquire_as_head(9, Mode::Exclusive), Outcome::Held);
        assert_outcomes(threads, &[Outcome::Silent, Outcome::Busy]);
    });
}

#[test]
fn lost_hold_is_passed_on_once() {
    check_worlds(&[0], |world| {
        let lease = world.held();
        let waiters = spawn_waiting(world, 2);
        let lost = Arc::clone(&lease);
        // The store has given up the lease, so the next head may be granted.
        world.store_release(Mode::Exclusive);
        let detach = spawn(world, move |world| world.queue.detach(KEY, &lost));
        match world.queue.finish(KEY, &lease, 0) {
            Finished::Detached => {}
            Finished::Release => world.queue.released(KEY),
            Finished::HandedOver => panic!("a lost lease was handed over"),
        }
        detach.join().unwrap();
        assert_outcomes(waiters, &[Outcome::Held]);
    });
}

#[test]
fn guard_is_dropped_while_the_keeper_is() {
    check(|| {
        let world = World::new(9);
        let lease = world.held();
        let weak = Arc::downgrade(&world);
        let waiters = spawn_waiting(&world, 1);
        let guard = spawn(&world, move |world| world.finish(&lease, 0));
        // The thread that watches deadlines scans the queue, if that still exists.
        let scan = thread::spawn(move || {
            if let Some(world) = weak.upgrade() {
                world.queue.scan(u64::MAX, |_| u64::MAX);
            }
        });
        drop(world);
        guard.join().unwrap();
        scan.join().unwrap();
        assert_outcomes(waiters, &[Outcome::Held]);
    });
}
