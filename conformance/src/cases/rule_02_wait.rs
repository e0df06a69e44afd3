//! Rule 2: an acquisition returns by its deadline, and busy, unavailable and unknown are three
//! outcomes.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind, LockGuard, LockKeeper, Mode, Wait};

use crate::modes::{attempt_in, in_mode, take_in};
use crate::rig::{Outcome, Rig, build, is_busy, take};

/// A delay beyond the deadline that no busy machine explains.
const EXCESSIVE: Duration = Duration::from_secs(10);

/// The answer to an acquisition, and how long that took.
type Timed = (Result<Option<LockGuard>, Error>, Duration);

/// Repeats a wait until the store replies in time. On a busy machine, the reply may come later than so short a wait ends, and
/// that is an error.
fn replied(mut wait: impl FnMut() -> Timed) -> Timed {
    let until = Instant::now() + EXCESSIVE;
    while Instant::now() < until {
        let (answer, took) = wait();
        match answer {
            Err(error) if error.is_retryable() => {}
            answer => return (answer, took),
        }
    }
    wait()
}

/// Asserts that waits for a name that is busy for this mode end at their deadlines.
fn deadlines(keeper: &LockKeeper, name: &str, mode: Mode) {
    for millis in [0, 1, 50, 500] {
        let wait = Duration::from_millis(millis);
        let (answer, took) = replied(|| {
            let began = Instant::now();
            let answer = keeper.acquire(name, &in_mode(mode).wait(wait));
            (answer, began.elapsed())
        });
        assert!(matches!(answer, Ok(None)), "expected busy: {answer:?}");
        assert!(took >= wait, "the attempt ended after {took:?} of {wait:?}");
        assert!(
            took < wait + EXCESSIVE,
            "the attempt ended after {took:?} of {wait:?}"
        );
    }
}

pub(super) fn waits_end_at_their_deadlines(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let keeper = rig.keeper();
        let held = take_in(&keeper, &name, pair.held);
        // In the store, and in the queue of the process.
        deadlines(&rig.keeper(), &name, pair.rival);
        deadlines(&keeper, &name, pair.rival);
        assert!(held.is_held());
        Ok(())
    })
}

pub(super) fn zero_wait_is_one_attempt(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    let held = take(&rig.keeper(), "a");
    assert!(is_busy(&keeper, "a"));
    let waits = tap.deadlines().iter().any(Option::is_some);
    assert!(!waits, "expected a request without a wait");
    held.release().expect("the store replies");
    assert!(!is_busy(&keeper, "a"));
    Ok(())
}

pub(super) fn one_of_hundred_attempts_is_granted(rig: &Rig<'_>) -> Outcome {
    assert_eq!(attempts(&[rig.keeper()]), 1);
    rig.nothing_left();
    let keepers = [rig.keeper(), rig.keeper()];
    // The two requests to a quorum can be in each other's way, and both are busy then.
    let granted = (0..5)
        .map(|_| attempts(&keepers))
        .find(|granted| *granted > 0);
    assert_eq!(granted, Some(1));
    rig.nothing_left();
    Ok(())
}

/// Returns how many of a hundred attempts at the same time are granted.
fn attempts(keepers: &[LockKeeper]) -> usize {
    let barrier = Barrier::new(100);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..100)
            .map(|number| {
                let keeper = &keepers[number % keepers.len()];
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let answer = attempt_in(keeper, "a", Mode::Exclusive);
                    // No thread releases before all have tried.
                    barrier.wait();
                    answer.is_some()
                })
            })
            .collect();
        let answers = threads.into_iter().map(|thread| thread.join());
        answers
            .filter(|granted| *granted.as_ref().expect("the thread does not panic"))
            .count()
    })
}

pub(super) fn unreachable_store_is_unavailable(rig: &Rig<'_>) -> Outcome {
    let holder = rig.keeper();
    let held = take(&holder, "held");
    let keeper = build(rig.builder().wait(Wait::AtMost(Duration::from_millis(200))));
    // Both keepers are connected before the store becomes unreachable.
    let warm = keeper.try_lock_for("warm", rig.timeout());
    let warm = warm.expect("the store replies").expect("it is free");
    warm.release().expect("the store replies");
    let fault = rig.cut_off()?;
    for name in ["held", "free"] {
        let error = keeper.try_lock(name).expect_err("the store is unreachable");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error:?}");
        let error = keeper.lock(name).expect_err("the store is unreachable");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error:?}");
        assert!(error.is_retryable());
    }
    drop(fault);
    assert!(is_busy(&rig.keeper(), "held"), "the lock is still held");
    // Right behind an outage, a drop may leave the release to the keeper's threads.
    let free = keeper.try_lock_for("free", rig.timeout());
    let free = free.expect("the store is back").expect("it is free");
    free.release().expect("the store is back");
    assert!(
        !is_busy(&rig.keeper(), "free"),
        "the failed attempts left no lock"
    );
    drop(held);
    rig.nothing_left();
    Ok(())
}
