//! A hold ends by itself, and its guard knows so before anyone else is granted the name.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, Capability, Clock, ErrorKind, LockGuard, LockKeeper, Released, Renewal,
    SystemClock, WaitOutcome,
};

use crate::rig::{Outcome, Rig, Skip, build, is_busy, take, take_with};
use crate::tap::Trouble;

/// What a store may be late by in freeing what ran out.
const GRACE: Duration = Duration::from_secs(1);

/// Waits for a name that somebody holds, and looks at what `first` says of itself at that moment.
fn follow(keeper: &LockKeeper, first: &LockGuard) -> LockGuard {
    let second = take(keeper, "a");
    assert!(
        !first.is_held(),
        "the first still calls itself held while {} is granted",
        second.token()
    );
    assert!(second.token() > first.token());
    second
}

pub(super) fn a_fixed_lease_runs_out_and_its_guard_knows_first(rig: &Rig<'_>) -> Outcome {
    let (first_keeper, second_keeper) = (rig.keeper(), rig.keeper());
    let began = Instant::now();
    let first = take_with(&first_keeper, "a", rig.fixed(400));
    let signal = first.lost_signal();
    let (tell, called) = channel();
    signal.on_lost(move || {
        let _ = tell.send(());
    });
    let second = follow(&second_keeper, &first);
    let took = began.elapsed();
    assert!(took >= rig.ttl(400), "freed after {took:?}, before its ttl");

    assert!(signal.is_lost());
    assert_eq!(signal.wait(rig.patience()), WaitOutcome::Lost);
    called
        .recv_timeout(rig.patience())
        .expect("the callback is called");
    let error = first.ensure_held().expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    assert_eq!(first.remaining(), Duration::ZERO);
    let error = first.renew().expect_err("it is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    let released = first.release().expect("the store answers");
    assert_eq!(released, Released::AlreadyLost);
    assert!(second.is_held());
    assert!(is_busy(&first_keeper, "a"), "the late release freed it");
    assert_eq!(second.release().expect("the store answers"), Released::Done);
    rig.nothing_left();
    Ok(())
}

/// Waits until a lease of `ttl` that was asked for before now has run out in the store for sure.
fn run_out(rig: &Rig<'_>, ttl: Duration) {
    let over = SystemClock.now() + ttl + GRACE;
    rig.until("the time goes by", || SystemClock.now() > over);
}

/// Also when nobody took the name: a lease that ran out is not revived.
pub(super) fn late_renewal_is_refused(rig: &Rig<'_>) -> Outcome {
    let ttl = rig.ttl(200);
    let mut lease = rig.raw_lease("a", ttl).lease;
    run_out(rig, ttl);
    for _ in 0..2 {
        let answer = lease.renew(ttl, SystemClock.now() + rig.patience());
        assert_eq!(answer.expect("the store answers"), Renewal::Lost);
    }
    drop(take(&rig.keeper(), "a"));
    let released = lease.release(SystemClock.now() + rig.patience());
    assert_eq!(released.expect("the store answers"), Released::AlreadyLost);
    Ok(())
}

pub(super) fn late_release_frees_nobody_elses(rig: &Rig<'_>) -> Outcome {
    let ttl = rig.ttl(200);
    let mut late = rig.raw_lease("a", ttl).lease;
    let second = take(&rig.keeper(), "a");
    let deadline = SystemClock.now() + rig.patience();
    let answer = late.renew(ttl, deadline).expect("the store answers");
    assert_eq!(answer, Renewal::Lost, "it is somebody else's now");
    let released = late.release(deadline).expect("the store answers");
    assert_eq!(released, Released::AlreadyLost);
    assert!(is_busy(&rig.keeper(), "a"), "it freed somebody else's lock");
    assert_eq!(second.release().expect("the store answers"), Released::Done);
    rig.nothing_left();
    Ok(())
}

/// A reply that took its time makes the lease shorter, not longer.
pub(super) fn the_lease_counts_from_before_the_request(rig: &Rig<'_>) -> Outcome {
    let late = Duration::from_millis(100);
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    tap.set(Trouble::Late(late));
    for lease in [rig.fixed(600), rig.fixed(10_000)] {
        let guard = take_with(&keeper, "a", lease);
        let remaining = guard.remaining();
        assert!(
            remaining <= lease.ttl() - late,
            "{remaining:?} of {:?} remain after an answer that took {late:?}",
            lease.ttl()
        );
    }
    Ok(())
}

pub(super) fn killed_holder_is_followed_within_the_ttl(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(1_000);
    let mut process = rig.process(lease)?;
    let token = process.take("a");
    let keeper = rig.keeper();
    process.kill();
    let killed = Instant::now();
    let guard = take(&keeper, "a");
    let took = killed.elapsed();
    // Far more than the second that it may be late by: the machine may be busy.
    let bound = lease.ttl() + GRACE + Duration::from_secs(10);
    assert!(took < bound, "freed {took:?} after the holder was killed");
    assert!(guard.token().get() > token);
    drop(guard);
    rig.nothing_left();
    Ok(())
}

fn needs_take_over(rig: &Rig<'_>) -> Outcome {
    let capability = Capability::DeadOwnerTakeOver;
    if rig.provider().capabilities().has(capability) {
        return Ok(());
    }
    Err(Skip(format!("the store does not declare {capability}")))
}

/// Its ttl is longer than this case waits.
pub(super) fn dead_owner_is_followed_at_once(rig: &Rig<'_>) -> Outcome {
    needs_take_over(rig)?;
    let mut process = rig.process(rig.renewed(3_600_000))?;
    let keeper = rig.keeper();
    let token = process.take("a");
    process.kill();
    let guard = take(&keeper, "a");
    assert!(guard.token().get() > token);

    // One that waits already when the holder dies.
    drop(guard);
    let mut process = rig.process(rig.renewed(3_600_000))?;
    process.take("a");
    let (waiter, ear) = rig.heard_keeper();
    std::thread::scope(|scope| {
        let granted = scope.spawn(|| take(&waiter, "a").token());
        ear.wait_for(crate::ear::Event::Contended, 1);
        process.kill();
        granted.join().expect("granted");
    });
    rig.nothing_left();
    Ok(())
}

/// Killed, and its parent has not asked how it ended: a zombie still has its process number.
pub(super) fn dead_owner_without_a_funeral_is_followed_at_once(rig: &Rig<'_>) -> Outcome {
    needs_take_over(rig)?;
    let mut process = rig.process(rig.renewed(3_600_000))?;
    let token = process.take("a");
    process.kill_only();
    let guard = take(&rig.keeper(), "a");
    assert!(guard.token().get() > token);
    Ok(())
}

#[cfg(unix)]
pub(super) fn stopped_holder_finds_itself_lost(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(500))?;
    let keeper = rig.keeper();
    let token = process.take("a");
    process.say("is_held");
    assert_eq!(process.hear(), "true");
    process.stop();
    let guard = take(&keeper, "a");
    assert!(guard.token().get() > token);
    process.resume();
    process.say("is_held");
    assert_eq!(process.hear(), "false", "it still calls itself held");
    process.say("release");
    assert_eq!(process.hear(), "AlreadyLost");
    assert!(guard.is_held());
    let other = rig.keeper();
    assert!(is_busy(&other, "a"), "the late release freed it");
    drop(guard);
    let now = other
        .acquire("a", &AcquireOptions::new())
        .expect("the store answers");
    drop(now.expect("it is free now"));
    rig.nothing_left();
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn stopped_holder_finds_itself_lost(_: &Rig<'_>) -> Outcome {
    Err(Skip("this system cannot stop a process".to_owned()))
}
