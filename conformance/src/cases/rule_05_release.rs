//! Only the owner's release frees the name, and dropping a guard is a release.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind, FencingToken, LockName, Observer, Released, WaitOutcome};

use crate::ear::Event;
use crate::rig::{Outcome, Rig, build, is_busy, take, take_with};

pub(super) fn frees_at_once(rig: &Rig<'_>) -> Outcome {
    let (keeper, other) = (rig.keeper(), rig.keeper());
    for _ in 0..3 {
        let guard = take(&keeper, "a");
        assert!(is_busy(&other, "a"));
        assert_eq!(guard.release().expect("the store answers"), Released::Done);
        rig.nothing_left();
        let work = other.with_lock("a", |guard| {
            assert!(guard.is_held());
            assert!(is_busy(&keeper, "a"));
            42
        });
        let done = work.expect("it is free");
        assert_eq!(done.held().expect("it was held"), 42);
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn dropped_while_panicking(rig: &Rig<'_>) -> Outcome {
    let (keeper, ear) = rig.heard_keeper();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = take(&keeper, "a");
        // Without the message of a panic that nobody planned.
        resume_unwind(Box::new("on purpose"));
    }));
    assert!(caught.is_err());
    assert_eq!(ear.count(Event::Released), 1);
    rig.nothing_left();
    assert!(!is_busy(&rig.keeper(), "a"));
    Ok(())
}

pub(super) fn on_another_thread(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper();
    let guard = take(&keeper, "a");
    let released = thread::spawn(move || guard.release())
        .join()
        .expect("no panic");
    assert_eq!(released.expect("the store answers"), Released::Done);
    assert!(!is_busy(&rig.keeper(), "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn on_another_thread_while_others_wait(rig: &Rig<'_>) -> Outcome {
    let (keeper, ear) = rig.heard_keeper();
    let (other, other_ear) = rig.heard_keeper();
    let guard = take(&keeper, "a");
    thread::scope(|scope| {
        for keeper in [&keeper, &keeper, &other, &other] {
            scope.spawn(|| drop(take(keeper, "a")));
        }
        ear.wait_for(Event::Contended, 2);
        other_ear.wait_for(Event::Contended, 2);
        scope.spawn(move || drop(guard));
    });
    rig.nothing_left();
    Ok(())
}

pub(super) fn ended_behind_its_back_and_released(rig: &Rig<'_>) -> Outcome {
    let guard = take(&rig.keeper(), "a");
    rig.end_lease("a")?;
    let other = take(&rig.keeper(), "a");
    assert!(other.token() > guard.token());
    let released = guard.release().expect("the store answers");
    assert_eq!(released, Released::AlreadyLost);
    assert!(is_busy(&rig.keeper(), "a"), "it freed somebody else's lock");
    assert_eq!(other.release().expect("the store answers"), Released::Done);
    rig.nothing_left();
    Ok(())
}

pub(super) fn ended_behind_its_back_and_renewed(rig: &Rig<'_>) -> Outcome {
    let ear = rig.ear();
    let keeper = build(
        rig.builder()
            .lease(rig.renewed(1_500))
            .observer(ear.clone()),
    );
    let guard = take(&keeper, "a");
    let (tell, called) = channel();
    guard.lost_signal().on_lost(move || {
        let _ = tell.send(());
    });
    rig.end_lease("a")?;
    let other = take(&rig.keeper(), "a");
    assert_eq!(guard.lost_signal().wait(rig.patience()), WaitOutcome::Lost);
    called
        .recv_timeout(rig.patience())
        .expect("the callback is called");
    ear.wait_for(Event::Lost, 1);
    assert_eq!(
        guard.release().expect("the store answers"),
        Released::AlreadyLost
    );
    assert!(other.is_held());
    assert!(is_busy(&rig.keeper(), "a"), "the late release freed it");

    // By hand it is found at once.
    let guard = take_with(&keeper, "b", rig.fixed(60_000));
    rig.end_lease("b")?;
    let error = guard.renew().expect_err("the store knows nothing of it");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    assert!(!guard.is_held());
    drop((guard, other));
    rig.nothing_left();
    Ok(())
}

pub(super) fn out_of_reach(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper_with(rig.renewed(2_000));
    let (released, dropped) = (take(&keeper, "released"), take(&keeper, "dropped"));
    let fault = rig.cut_off()?;
    let began = Instant::now();
    let answer = released.release();
    drop(dropped);
    let took = began.elapsed();
    match answer {
        // The machine was busy for longer than the lease.
        Ok(Released::AlreadyLost) => {}
        Ok(Released::Done) => panic!("nobody can know that"),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
    assert!(took < Duration::from_secs(20), "released for {took:?}");
    drop(fault);
    // Freed by the ttl at the latest.
    drop((
        take(&rig.keeper(), "released"),
        take(&rig.keeper(), "dropped"),
    ));
    rig.nothing_left();
    Ok(())
}

/// Panics whatever it hears.
struct Panics;

impl Panics {
    fn panic() -> ! {
        resume_unwind(Box::new("on purpose"))
    }
}

impl Observer for Panics {
    fn acquired(&self, _: &LockName, _: FencingToken, _: Duration, _: bool) {
        Self::panic();
    }

    fn contended(&self, _: &LockName) {
        Self::panic();
    }

    fn not_acquired(&self, _: &LockName, _: Duration, _: Option<&Error>) {
        Self::panic();
    }

    fn renewed(&self, _: &LockName, _: FencingToken) {
        Self::panic();
    }

    fn lost(&self, _: &LockName, _: FencingToken) {
        Self::panic();
    }

    fn released(&self, _: &LockName, _: FencingToken, _: &Result<Released, Error>) {
        Self::panic();
    }
}

pub(super) fn an_observer_that_panics_does_no_harm(rig: &Rig<'_>) -> Outcome {
    let keeper = build(
        rig.builder()
            .lease(rig.renewed(2_000))
            .observer(Arc::new(Panics)),
    );
    let guard = take(&keeper, "a");
    let other = rig.keeper();
    // Past its ttl, so that it was renewed.
    let answer = other.try_lock_for("a", rig.ttl(1_000) + rig.ttl(500));
    assert!(matches!(answer, Ok(None)), "it is held: {answer:?}");
    assert!(is_busy(&keeper, "a"));
    assert_eq!(guard.release().expect("the store answers"), Released::Done);
    let lost = take_with(&keeper, "a", rig.fixed(200));
    let signal = lost.lost_signal();
    signal.on_lost(|| Panics::panic());
    assert_eq!(signal.wait(rig.patience()), WaitOutcome::Lost);
    drop(lost);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}
