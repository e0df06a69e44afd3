//! What the queue answers one call after the other, where no second thread is needed to show it.

use shuttle::sync::Arc;
use std::cell::RefCell;

use crate::error::Error;
use crate::hold::Hold;
use crate::key::Key;
use crate::mode::Mode;
use crate::name::LockName;
use crate::name_state::Finished;
use crate::queue::Entered;
use crate::waiter::{Given, Unserved, WaitKind, Waiter};
use crate::world::{KEY, World};

const SINGLE: WaitKind = WaitKind::SingleAttempt;

/// What a thread has after a call.
#[derive(Debug, PartialEq)]
enum Has {
    Head,
    Hold,
    Busy,
    Freed,
    Failed,
    Silent,
    Mismatch,
}

fn has(given: &Given) -> Has {
    match given {
        Given::HeadPermit => Has::Head,
        Given::Hold(..) => Has::Hold,
        Given::Nothing(why) => has_nothing(why),
    }
}

fn has_nothing(why: &Unserved) -> Has {
    match why {
        Unserved::Busy => Has::Busy,
        Unserved::Freed => Has::Freed,
        Unserved::Failed(Error) => Has::Failed,
        Unserved::Silent => Has::Silent,
        Unserved::LimitMismatch { .. } => Has::Mismatch,
    }
}

/// Runs the only schedule that there is.
fn once(model: impl Fn() + Send + Sync + 'static) {
    shuttle::check_dfs(model, None);
}

fn at_once(world: &World, mode: Mode, kind: WaitKind) -> Has {
    match world.enter(mode, kind) {
        Entered::Given(given) => has(&given),
        Entered::Queued(_) => panic!("it waits in the queue"),
    }
}

fn queued(world: &World, mode: Mode, kind: WaitKind) -> Arc<Waiter> {
    match world.enter(mode, kind) {
        Entered::Queued(waiter) => waiter,
        Entered::Given(given) => panic!("it has {:?} at once", has(&given)),
    }
}

/// Returns what a waiter was given; a waiter that was given nothing is a deadlock of the model.
fn given_to(waiter: &Waiter) -> Has {
    has(&waiter.wait(None).expect("no call unparks it"))
}

#[test]
fn attempts_end_when_the_store_shows_the_head_a_holder() {
    once(|| {
        let world = World::new(0);
        world.assert_head();
        let attempt = queued(&world, Mode::Exclusive, SINGLE);
        let waiter = world.queued();
        world.queue.contended(KEY);
        assert_eq!(given_to(&attempt), Has::Busy);
        assert_eq!(at_once(&world, Mode::Exclusive, SINGLE), Has::Busy);
        assert_eq!(has(&world.queue.leave(KEY, &waiter)), Has::Busy);
    });
}

#[test]
fn attempt_behind_a_release_that_failed_fails_at_once() {
    once(|| {
        let world = World::new(0);
        assert!(world.queue.begin_release(KEY));
        assert!(!world.queue.begin_release(KEY), "it is in use");
        world.queue.fail(KEY, true, &Error);
        for kind in [SINGLE, WaitKind::UntilFailure] {
            assert_eq!(at_once(&world, Mode::Exclusive, kind), Has::Failed);
        }
        let waiter = world.queued();
        world.queue.released(KEY);
        assert_eq!(given_to(&waiter), Has::Head);
    });
}

/// The store failed another thread before, and is not asked now.
#[test]
fn attempt_beside_readers_is_busy_also_after_a_head_that_failed() {
    once(|| {
        let world = World::new(0);
        let _reader = world.held_in(Mode::Shared);
        world.assert_head();
        world.queue.pass(KEY, Some(Error));
        assert_eq!(at_once(&world, Mode::Exclusive, SINGLE), Has::Busy);
    });
}

#[test]
fn head_that_waits_for_permits_excludes_other_limits() {
    once(|| {
        let world = World::new(0);
        let [two, three] = [2, 3].map(|limit| Mode::Permit { limit });
        let key = Key::new(&LockName, two);
        assert_eq!(at_once(&world, two, SINGLE), Has::Head);
        // The head may have the first one.
        let other = queued(&world, three, SINGLE);
        world.queue.contended(key);
        assert_eq!(given_to(&other), Has::Mismatch);
        assert_eq!(at_once(&world, three, SINGLE), Has::Mismatch);
        assert_eq!(at_once(&world, two, SINGLE), Has::Busy);
    });
}

#[test]
fn wait_that_ends_behind_a_release_saw_the_name_freed() {
    once(|| {
        let world = World::new(0);
        let lease = world.held();
        let [first, second] = [(); 2].map(|()| world.queued());
        assert_eq!(has(&world.queue.leave(KEY, &first)), Has::Busy);
        assert_eq!(world.queue.finish(KEY, &lease, 0), Finished::Release);
        assert_eq!(has_nothing(&world.queue.unserved(KEY, &second)), Has::Freed);
        assert_eq!(has(&world.queue.leave(KEY, &second)), Has::Freed);
        let late = world.queued();
        assert_eq!(has(&world.queue.leave(KEY, &late)), Has::Silent);
    });
}

fn polled(world: &World, horizon: u64, due: u64) -> (usize, u64) {
    let count = RefCell::new(0);
    let next = world.queue.scan(horizon, |_: &Arc<Hold>| {
        *count.borrow_mut() += 1;
        due
    });
    (count.into_inner(), next)
}

#[test]
fn each_of_several_leases_ends_by_itself() {
    // Which leases end, one after the other.
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        once(move || {
            let world = World::new(0);
            let mode = Mode::Permit { limit: 3 };
            let leases = [(); 3].map(|()| world.held_in(mode));
            let key = Key::new(&LockName, mode);
            for (ended, number) in order.into_iter().enumerate() {
                assert_eq!(polled(&world, u64::MAX, 0).0, 3 - ended);
                let finished = world.queue.finish(key, &leases[number], 0);
                assert_eq!(finished, Finished::Release);
                let again = world.queue.finish(key, &leases[number], 0);
                assert_eq!(again, Finished::Detached);
                // A permit on its way back is not free, and another holder may have had it.
                queued(&world, mode, WaitKind::ThroughOutages);
            }
        });
    }
}

#[test]
fn holds_are_polled_when_they_are_due() {
    once(|| {
        let world = World::new(0);
        let _lease = world.held();
        assert_eq!(polled(&world, 0, 5), (1, 5));
        assert_eq!(polled(&world, 4, 5), (0, 5));
        assert_eq!(polled(&world, 5, 9), (1, 9));
        world.queue.note_due(KEY, 7);
        world.queue.note_due(KEY, 8);
        assert_eq!(polled(&world, 6, 9), (0, 7));
        assert_eq!(polled(&world, 7, 9), (1, 9));
    });
}

#[test]
fn queue_is_idle_while_leases_are_only_held() {
    once(|| {
        let world = World::new(0);
        assert!(world.queue.is_idle());
        world.assert_head();
        assert!(!world.queue.is_idle(), "the head asks");
        let lease = world.grant(Mode::Exclusive);
        assert!(world.queue.is_idle());
        let waiter = world.queued();
        assert!(!world.queue.is_idle(), "a thread waits");
        assert_eq!(has(&world.queue.leave(KEY, &waiter)), Has::Busy);
        assert!(world.queue.is_idle());
        assert_eq!(world.queue.finish(KEY, &lease, 0), Finished::Release);
        assert!(!world.queue.is_idle(), "the lease goes back");
        world.queue.released(KEY);
        assert!(world.queue.is_idle());
    });
}
