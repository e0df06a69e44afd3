//! Rule 3: a lease expires by itself, and its guard is lost before the name is granted again.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Capability, Clock, LeasePolicy, Released, Renewal, SystemClock};

use crate::modes::{granted, in_mode, is_busy_in, take_in};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, Skip, is_busy, take};

/// How late a store may free the name of an expired lease.
const GRACE: Duration = Duration::from_secs(1);

pub(super) fn expired_lease_is_lost_before_the_next_grant(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let (holder, next) = (rig.keeper(), rig.keeper());
        let began = Instant::now();
        let first = granted(&holder, &name, &in_mode(pair.held).lease(rig.fixed(400)));
        let second = take_in(&next, &name, pair.rival);
        assert!(
            !first.is_held(),
            "{pair:?}: {second:?} was granted beside it"
        );
        assert!(second.token() > first.token(), "{pair:?}");
        let took = began.elapsed();
        assert!(took >= rig.ttl(400), "freed after {took:?}, before its ttl");
        let released = first.release().expect("the store replies");
        assert_eq!(released, Released::AlreadyLost, "{pair:?}");
        let is_busy = is_busy_in(&holder, &name, pair.held);
        assert!(is_busy, "{pair:?}: the late release freed the next lease");
        let released = second.release().expect("the store replies");
        assert_eq!(released, Released::Done, "{pair:?}");
        Ok(())
    })
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
        assert_eq!(lease.renew(ttl), Renewal::Lost);
    }
    drop(take(&rig.keeper(), "a"));
    assert_eq!(lease.release(), Released::AlreadyLost);
    Ok(())
}

pub(super) fn late_release_keeps_the_next_lease(rig: &Rig<'_>) -> Outcome {
    let ttl = rig.ttl(200);
    let mut late = rig.raw_lease("a", ttl);
    let second = take(&rig.keeper(), "a");
    let answer = late.renew(ttl);
    assert_eq!(answer, Renewal::Lost, "the name was granted again");
    assert_eq!(late.release(), Released::AlreadyLost);
    assert!(
        is_busy(&rig.keeper(), "a"),
        "the late release freed the next lock"
    );
    assert_eq!(second.release().expect("the store replies"), Released::Done);
    rig.nothing_left();
    Ok(())
}

pub(super) fn killed_holder_is_replaced_within_the_ttl(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(1_000);
    // Ten seconds more than the contract allows, for a busy machine.
    let bound = lease.ttl() + GRACE + Duration::from_secs(10);
    replace_killed_holder(rig, lease, bound)
}

/// The ttl is longer than this case waits.
pub(super) fn dead_owner_is_replaced_at_once(rig: &Rig<'_>) -> Outcome {
    needs_dead_owner_take_over(rig)?;
    replace_killed_holder(rig, rig.renewed(3_600_000), rig.timeout())
}

/// A waiter waits for one name when the holder is killed, and an attempt at another name comes later. Both are granted
/// within `bound`.
fn replace_killed_holder(rig: &Rig<'_>, lease: LeasePolicy, bound: Duration) -> Outcome {
    rig.each_pair(|pair| {
        let names = ["waited", "idle"].map(|prefix| format!("{prefix}-{}", pair.name()));
        let [mut process, mut idle] = [rig.process(lease)?, rig.process(lease)?];
        let token = process.acquire_in(&names[0], pair.held);
        let idle_token = idle.acquire_in(&names[1], pair.held);
        let (waiter, recorder) = rig.recorded_keeper();
        let later = rig.keeper();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take_in(&waiter, &names[0], pair.rival));
            // On a busy machine, the process may have lost its lease before.
            rig.until("the waiter waits", || {
                recorder.count(Event::Contended) > 0 || waiting.is_finished()
            });
            process.kill();
            idle.kill();
            let killed = Instant::now();
            let later = take_in(&later, &names[1], pair.rival);
            assert!(later.token().get() > idle_token, "{pair:?}");
            let next = waiting.join().expect("the waiter is granted the name");
            assert!(next.token().get() > token, "{pair:?}");
            let took = killed.elapsed();
            assert!(took < bound, "freed {took:?} after the holder was killed");
        });
        Ok(())
    })
}

fn needs_dead_owner_take_over(rig: &Rig<'_>) -> Outcome {
    let capability = Capability::DeadOwnerTakeOver;
    if rig.provider().capabilities().has(capability) {
        return Ok(());
    }
    Err(Skip(format!("the store does not declare {capability}")))
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

pub(super) fn stopped_holder_is_lost_when_it_resumes(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let mut process = rig.process(rig.renewed(500))?;
        let token = process.acquire_in(&name, pair.held);
        rig.stop(&process);
        let next = take_in(&rig.keeper(), &name, pair.rival);
        assert!(next.token().get() > token, "{pair:?}");
        process.resume();
        process.send("is_held");
        assert_eq!(process.next_line(), "false", "{pair:?}");
        process.send("release");
        // The reply to what was under way when it was stopped may have come too late.
        let answer = process.next_line();
        let is_known = answer == "AlreadyLost" || answer.contains("Err(Unknown");
        assert!(is_known, "{pair:?}: {answer}");
        assert!(next.is_held());
        let is_busy = is_busy_in(&rig.keeper(), &name, pair.held);
        assert!(is_busy, "{pair:?}: the late release freed the next lease");
        Ok(())
    })
}
