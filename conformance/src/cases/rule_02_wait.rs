//! An acquisition returns by its deadline, and busy, unavailable and unknown are told apart.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{ErrorKind, LockKeeper, Wait};

use crate::rig::{Outcome, Rig, build, is_busy, take};
use crate::tap::Trouble;

/// Not a promise about speed: so late that something waits for something else.
const ABSURD: Duration = Duration::from_secs(10);

fn deadlines(keeper: &LockKeeper) {
    for millis in [0, 1, 50, 500] {
        let wait = Duration::from_millis(millis);
        let began = Instant::now();
        let answer = keeper.try_lock_for("a", wait);
        let took = began.elapsed();
        assert!(matches!(answer, Ok(None)), "busy is no error: {answer:?}");
        assert!(took >= wait, "gave up after {took:?} of {wait:?}");
        assert!(took < wait + ABSURD, "gave up after {took:?} of {wait:?}");
    }
}

pub(super) fn deadlines_in_line(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper();
    let held = take(&keeper, "a");
    deadlines(&keeper);
    assert!(held.is_held());
    drop(held);
    rig.nothing_left();
    Ok(())
}

pub(super) fn deadlines_in_the_store(rig: &Rig<'_>) -> Outcome {
    let held = take(&rig.keeper(), "a");
    deadlines(&rig.keeper());
    assert!(held.is_held());
    drop(held);
    rig.nothing_left();
    Ok(())
}

pub(super) fn no_wait_is_one_attempt(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    let held = take(&rig.keeper(), "a");
    assert!(is_busy(&keeper, "a"));
    assert_eq!(tap.waits(), [None], "one question, and no wait in it");
    drop(held);
    assert!(!is_busy(&keeper, "a"));
    Ok(())
}

fn attempts(keepers: &[LockKeeper]) {
    let together = Barrier::new(100);
    let granted = thread::scope(|scope| {
        let threads: Vec<_> = (0..100)
            .map(|number| {
                let keeper = &keepers[number % keepers.len()];
                let together = &together;
                scope.spawn(move || {
                    together.wait();
                    let answer = keeper.try_lock("a");
                    // Nobody lets go before all have tried.
                    together.wait();
                    answer.expect("busy is no error").is_some()
                })
            })
            .collect();
        let answers = threads.into_iter().map(|thread| thread.join());
        answers
            .filter(|granted| *granted.as_ref().expect("no panic"))
            .count()
    });
    assert_eq!(granted, 1);
}

pub(super) fn hundred_attempts_and_one_is_granted(rig: &Rig<'_>) -> Outcome {
    attempts(&[rig.keeper()]);
    rig.nothing_left();
    Ok(())
}

pub(super) fn hundred_attempts_of_two_keepers_and_one_is_granted(rig: &Rig<'_>) -> Outcome {
    attempts(&[rig.keeper(), rig.keeper()]);
    rig.nothing_left();
    Ok(())
}

pub(super) fn a_busy_lock_times_out(rig: &Rig<'_>) -> Outcome {
    let _held = take(&rig.keeper(), "a");
    let wait = Wait::AtMost(Duration::from_millis(20));
    let error = build(rig.builder().wait(wait)).lock("a").map(drop);
    let error = error.expect_err("somebody holds it");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert_eq!(error.name().map(|name| name.as_str()), Some("a"));
    Ok(())
}

/// Those who would not wait and stand behind the one that asks are not told "busy" when it has no
/// answer.
pub(super) fn trouble_is_told_to_all_who_ask(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    tap.set(Trouble::Fails(ErrorKind::Unavailable));
    let together = Barrier::new(20);
    thread::scope(|scope| {
        for number in 0..20 {
            let (keeper, together) = (&keeper, &together);
            scope.spawn(move || {
                together.wait();
                let answer = if number % 2 == 0 {
                    keeper.try_lock("a")
                } else {
                    keeper.lock("a").map(Some)
                };
                let error = answer.expect_err("the store cannot be asked");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            });
        }
    });
    tap.set(Trouble::None);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}

/// Threads whose wait ends while the store has not answered the one that asks are not told "busy":
/// no holder was seen.
pub(super) fn no_answer_is_busy_for_nobody(rig: &Rig<'_>) -> Outcome {
    let wait = Duration::from_millis(200);
    let (builder, tap) = rig.tapped();
    let keeper = build(builder.wait(Wait::AtMost(wait)));
    tap.set(Trouble::Silent(wait));
    let together = Barrier::new(12);
    thread::scope(|scope| {
        for number in 0..12 {
            let (keeper, together) = (&keeper, &together);
            scope.spawn(move || {
                together.wait();
                let answer = match number % 3 {
                    0 => keeper.try_lock("a"),
                    1 => keeper.try_lock_for("a", wait / 4),
                    _ => keeper.lock("a").map(Some),
                };
                let error = answer.expect_err("the store answers nobody");
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            });
        }
    });
    tap.set(Trouble::None);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn unknown_stays_unknown(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    tap.set(Trouble::Fails(ErrorKind::Unknown));
    let error = keeper.try_lock("a").expect_err("the store did not say");
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    tap.set(Trouble::None);
    drop(take(&keeper, "a"));
    Ok(())
}

pub(super) fn out_of_reach_is_neither_busy_nor_granted(rig: &Rig<'_>) -> Outcome {
    let holder = rig.keeper();
    let held = take(&holder, "held");
    let keeper = build(rig.builder().wait(Wait::AtMost(Duration::from_millis(200))));
    // Both connected before the store goes.
    drop(take(&keeper, "warm"));
    let fault = rig.cut_off()?;
    for name in ["held", "free"] {
        let error = keeper
            .try_lock(name)
            .expect_err("the store cannot be asked");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error:?}");
        let error = keeper.lock(name).expect_err("the store cannot be asked");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{name}: {error:?}");
        assert!(error.is_retryable());
    }
    drop(fault);
    assert!(is_busy(&rig.keeper(), "held"), "nobody let go of it");
    drop(take(&keeper, "free"));
    assert!(!is_busy(&rig.keeper(), "free"), "no lock stayed behind");
    drop(held);
    rig.nothing_left();
    Ok(())
}
