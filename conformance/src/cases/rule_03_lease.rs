//! Rule 3: a lease expires by itself, and its guard is lost before the name is granted again.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, Capability, Clock, ErrorKind, LockGuard, LockKeeper, Released, Renewal,
    SystemClock, WaitOutcome,
};

use crate::rig::{Outcome, Rig, Skip, build, is_busy, take, take_with};
use crate::tap::Fault;

/// How late a store may free the name of an expired lease.
const GRACE: Duration = Duration::from_secs(1);

/// Waits for a held name, and asserts that `first` is lost when the name is granted again.
fn take_after_loss(keeper: &LockKeeper, first: &LockGuard) -> LockGuard {
    let second = take(keeper, "a");
    assert!(
        !first.is_held(),
        "the first guard reports that it is held while {} is granted",
        second.token()
    );
    assert!(second.token() > first.token());
    second
}

pub(super) fn expired_fixed_lease_is_lost_before_the_next_grant(rig: &Rig<'_>) -> Outcome {
    let (first_keeper, second_keeper) = (rig.keeper(), rig.keeper());
    let began = Instant::now();
    let first = take_with(&first_keeper, "a", rig.fixed(400));
    let signal = first.lost_signal();
    let (sender, called) = channel();
    signal.on_lost(move || {
        let _ = sender.send(());
    });
    let second = take_after_loss(&second_keeper, &first);
    let took = began.elapsed();
    assert!(took >= rig.ttl(400), "freed after {took:?}, before its ttl");

    assert!(signal.is_lost());
    assert_eq!(signal.wait(rig.timeout()), WaitOutcome::Lost);
    called
        .recv_timeout(rig.timeout())
        .expect("the loss callback runs");
    let error = first.ensure_held().expect_err("the lock is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    assert_eq!(first.remaining(), Duration::ZERO);
    let error = first.renew().expect_err("the lock is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    let released = first.release().expect("the store replies");
    assert_eq!(released, Released::AlreadyLost);
    assert!(second.is_held());
    assert!(
        is_busy(&first_keeper, "a"),
        "the late release freed the next lock"
    );
    assert_eq!(second.release().expect("the store replies"), Released::Done);
    rig.nothing_left();
    Ok(())
}

/// Waits until a lease of `ttl` that was requested before this call has expired in the store.
fn wait_for_expiry(rig: &Rig<'_>, ttl: Duration) {
    let expired = SystemClock.now() + ttl + GRACE;
    rig.until("the lease has expired", || SystemClock.now() > expired);
}

/// An expired lease is not renewed even if the name was not granted again.
pub(super) fn expired_lease_is_not_renewed(rig: &Rig<'_>) -> Outcome {
    let ttl = rig.ttl(200);
    let mut lease = rig.raw_lease("a", ttl);
    wait_for_expiry(rig, ttl);
    for _ in 0..2 {
        let answer = lease.renew(ttl, SystemClock.now() + rig.timeout());
        assert_eq!(answer.expect("the store replies"), Renewal::Lost);
    }
    drop(take(&rig.keeper(), "a"));
    let released = lease.release(SystemClock.now() + rig.timeout());
    assert_eq!(released.expect("the store replies"), Released::AlreadyLost);
    Ok(())
}

pub(super) fn late_release_keeps_the_next_lease(rig: &Rig<'_>) -> Outcome {
    let ttl = rig.ttl(200);
    let mut late = rig.raw_lease("a", ttl);
    let second = take(&rig.keeper(), "a");
    let deadline = SystemClock.now() + rig.timeout();
    let answer = late.renew(ttl, deadline).expect("the store replies");
    assert_eq!(answer, Renewal::Lost, "the name was granted again");
    let released = late.release(deadline).expect("the store replies");
    assert_eq!(released, Released::AlreadyLost);
    assert!(
        is_busy(&rig.keeper(), "a"),
        "the late release freed the next lock"
    );
    assert_eq!(second.release().expect("the store replies"), Released::Done);
    rig.nothing_left();
    Ok(())
}

/// A late reply shortens the remaining time of the lease.
pub(super) fn lease_counts_from_before_the_request(rig: &Rig<'_>) -> Outcome {
    let late = Duration::from_millis(100);
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    tap.set(Fault::Late(late));
    for lease in [rig.fixed(600), rig.fixed(10_000)] {
        let guard = take_with(&keeper, "a", lease);
        let remaining = guard.remaining();
        assert!(
            remaining <= lease.ttl() - late,
            "{remaining:?} of {:?} remain after a reply that took {late:?}",
            lease.ttl()
        );
    }
    Ok(())
}

pub(super) fn killed_holder_is_replaced_within_the_ttl(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(1_000);
    let mut process = rig.process(lease)?;
    let token = process.acquire("a");
    let keeper = rig.keeper();
    process.kill();
    let killed = Instant::now();
    let guard = take(&keeper, "a");
    let took = killed.elapsed();
    // Ten seconds more than the contract allows, for a busy machine.
    let bound = lease.ttl() + GRACE + Duration::from_secs(10);
    assert!(took < bound, "freed {took:?} after the holder was killed");
    assert!(guard.token().get() > token);
    drop(guard);
    rig.nothing_left();
    Ok(())
}

fn needs_dead_owner_take_over(rig: &Rig<'_>) -> Outcome {
    let capability = Capability::DeadOwnerTakeOver;
    if rig.provider().capabilities().has(capability) {
        return Ok(());
    }
    Err(Skip(format!("the store does not declare {capability}")))
}

/// The ttl is longer than this case waits.
pub(super) fn dead_owner_is_replaced_at_once(rig: &Rig<'_>) -> Outcome {
    needs_dead_owner_take_over(rig)?;
    let mut process = rig.process(rig.renewed(3_600_000))?;
    let keeper = rig.keeper();
    let token = process.acquire("a");
    process.kill();
    let guard = take(&keeper, "a");
    assert!(guard.token().get() > token);

    // The same with a waiter that waits when the holder dies.
    guard.release().expect("the store replies");
    let mut process = rig.process(rig.renewed(3_600_000))?;
    process.acquire("a");
    let (waiter, recorder) = rig.recorded_keeper();
    std::thread::scope(|scope| {
        let granted = scope.spawn(|| take(&waiter, "a").token());
        recorder.wait_for(crate::recorder::Event::Contended, 1);
        process.kill();
        granted.join().expect("the waiter is granted the name");
    });
    rig.nothing_left();
    Ok(())
}

/// The killed holder is a zombie, which still has its process id.
pub(super) fn unreaped_dead_owner_is_replaced_at_once(rig: &Rig<'_>) -> Outcome {
    needs_dead_owner_take_over(rig)?;
    let mut process = rig.process(rig.renewed(3_600_000))?;
    let token = process.acquire("a");
    process.kill_without_wait();
    let guard = take(&rig.keeper(), "a");
    assert!(guard.token().get() > token);
    Ok(())
}

#[cfg(unix)]
pub(super) fn stopped_holder_is_lost_when_it_resumes(rig: &Rig<'_>) -> Outcome {
    let mut process = rig.process(rig.renewed(500))?;
    let keeper = rig.keeper();
    let token = process.acquire("a");
    process.stop();
    let guard = take(&keeper, "a");
    assert!(guard.token().get() > token);
    process.resume();
    process.send("is_held");
    assert_eq!(
        process.next_line(),
        "false",
        "the guard reports that it is held"
    );
    process.send("release");
    assert_eq!(process.next_line(), "AlreadyLost");
    assert!(guard.is_held());
    let other = rig.keeper();
    assert!(is_busy(&other, "a"), "the late release freed the next lock");
    drop(guard);
    let now = other
        .acquire("a", &AcquireOptions::new())
        .expect("the store replies");
    drop(now.expect("the name is free"));
    rig.nothing_left();
    Ok(())
}

#[cfg(not(unix))]
pub(super) fn stopped_holder_is_lost_when_it_resumes(_: &Rig<'_>) -> Outcome {
    Err(Skip("this system has no SIGSTOP".to_owned()))
}
