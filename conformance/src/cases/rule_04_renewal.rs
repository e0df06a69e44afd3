//! A lease is renewed while its guard lives, and an answer that did not come moves no deadline.

use std::time::Duration;

use lockkeeper_core::{ErrorKind, LockGuard, Released, WaitOutcome};

use crate::ear::Event;
use crate::rig::{Outcome, Rig, build, is_busy, take, take_with};
use crate::tap::Trouble;

pub(super) fn held_over_five_ttls(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(3_000);
    let first = take(&rig.keeper_with(lease), "a");
    let second = rig.keeper();
    let answer = second.try_lock_for("a", 5 * lease.ttl());
    assert!(matches!(answer, Ok(None)), "it is held: {answer:?}");
    assert!(first.is_held());
    assert_eq!(first.release().expect("the store answers"), Released::Done);
    drop(take(&second, "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn renewal_by_hand(rig: &Rig<'_>) -> Outcome {
    let lease = rig.fixed(3_000);
    let guard = take_with(&rig.keeper(), "a", lease);
    let full = guard.remaining();
    rig.until("some of the lease goes by", || {
        guard.remaining() < full - full / 4
    });
    let before = guard.remaining();
    guard.renew().expect("the store answers");
    let after = guard.remaining();
    assert!(
        after > before,
        "{before:?} remained, and {after:?} after a renewal"
    );
    assert!(after <= lease.ttl());
    assert_eq!(guard.release().expect("the store answers"), Released::Done);
    Ok(())
}

pub(super) fn failing_and_working_again_in_time(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let ear = rig.ear();
    let keeper = build(builder.lease(rig.renewed(3_000)).observer(ear.clone()));
    let guard = take(&keeper, "a");
    tap.set(Trouble::Fails(ErrorKind::Unavailable));
    ear.wait_for(Event::RenewalUnknown, 1);
    assert_eq!(ear.count(Event::Renewed), 0);
    tap.set(Trouble::None);
    ear.wait_for(Event::Renewed, 1);
    assert!(guard.is_held());
    assert_eq!(guard.release().expect("the store answers"), Released::Done);
    assert_eq!(ear.count(Event::Lost), 0);
    Ok(())
}

pub(super) fn failing_and_working_again_too_late(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let ear = rig.ear();
    let keeper = build(builder.lease(rig.renewed(600)).observer(ear.clone()));
    let guard = take(&keeper, "a");
    tap.set(Trouble::Fails(ErrorKind::Unknown));
    assert_eq!(guard.lost_signal().wait(rig.patience()), WaitOutcome::Lost);
    ear.wait_for(Event::Lost, 1);
    tap.set(Trouble::None);
    drop(take(&rig.keeper(), "a"));
    assert!(!guard.is_held(), "it was lost, and stays so");
    assert_eq!(
        guard.release().expect("the store answers"),
        Released::AlreadyLost
    );
    assert_eq!(ear.count(Event::Lost), 1, "a loss is told once");
    rig.nothing_left();
    Ok(())
}

pub(super) fn out_of_reach_and_back_in_time(rig: &Rig<'_>) -> Outcome {
    let ear = rig.ear();
    let lease = rig.renewed(4_000);
    let keeper = build(rig.builder().lease(lease).observer(ear.clone()));
    let guard = take(&keeper, "a");
    let fault = rig.cut_off()?;
    let renewed = ear.count(Event::Renewed);
    // A third of the ttl after the grant it is to be renewed, and cannot be.
    rig.until("half of the lease goes by", || {
        guard.remaining() < lease.ttl() / 2
    });
    assert_eq!(
        ear.count(Event::Renewed),
        renewed,
        "renewed in a store out of reach"
    );
    drop(fault);
    ear.wait_for(Event::Renewed, renewed + 1);
    assert!(guard.is_held());
    assert!(is_busy(&rig.keeper(), "a"));
    assert_eq!(guard.release().expect("the store answers"), Released::Done);
    assert_eq!(ear.count(Event::Lost), 0);
    rig.nothing_left();
    Ok(())
}

pub(super) fn out_of_reach_and_back_too_late(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper_with(rig.renewed(600));
    let guard = take(&keeper, "a");
    let fault = rig.cut_off()?;
    assert_eq!(guard.lost_signal().wait(rig.patience()), WaitOutcome::Lost);
    drop(fault);
    let other = take(&rig.keeper(), "a");
    assert!(other.token() > guard.token());
    assert!(!guard.is_held(), "it was lost, and stays so");
    assert_eq!(
        guard.release().expect("the store answers"),
        Released::AlreadyLost
    );
    assert!(other.is_held());
    assert_eq!(other.release().expect("the store answers"), Released::Done);
    rig.nothing_left();
    Ok(())
}

pub(super) fn a_slow_store_keeps_its_leases(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(2_000);
    let (keeper, other) = (rig.keeper_with(lease), rig.keeper());
    let guards = [take(&keeper, "a"), take(&keeper, "b")];
    let fault = rig.slow_down(lease.ttl() / 20)?;
    // A waiter may find it too slow, but not granted.
    match other.try_lock_for("a", 2 * lease.ttl()) {
        Ok(None) => {}
        Ok(Some(granted)) => panic!("it is held, and {granted:?} was granted"),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
    assert!(guards.iter().all(LockGuard::is_held), "{guards:?}");
    drop(fault);
    for guard in guards {
        assert_eq!(guard.release().expect("the store answers"), Released::Done);
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn a_panic_ends_no_renewal(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let ear = rig.ear();
    let keeper = build(builder.lease(rig.renewed(3_000)).observer(ear.clone()));
    let guard = take(&keeper, "a");
    tap.set(Trouble::RenewalPanics);
    ear.wait_for(Event::RenewalUnknown, 1);
    tap.set(Trouble::None);
    ear.wait_for(Event::Renewed, 1);
    assert!(guard.is_held());
    Ok(())
}

pub(super) fn one_call_that_hangs_costs_nobody_else(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder.lease(rig.renewed(2_000)));
    let hanging = take(&keeper, "hangs");
    let others: Vec<_> = (0..8)
        .map(|n| take(&keeper, &format!("other {n}")))
        .collect();
    tap.set(Trouble::Hangs("hangs"));
    assert_eq!(
        hanging.lost_signal().wait(rig.patience()),
        WaitOutcome::Lost
    );
    // They were granted together, so without a renewal they would be lost by now too; and they
    // stay held for longer than one lease.
    assert_eq!(
        others[0].lost_signal().wait(rig.ttl(2_000)),
        WaitOutcome::TimedOut
    );
    for other in others {
        assert!(other.is_held(), "{:?} was lost", other.name());
        assert_eq!(other.release().expect("the store answers"), Released::Done);
    }
    Ok(())
}

pub(super) fn none_after_release(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let ear = rig.ear();
    let keeper = build(builder.lease(rig.renewed(2_000)).observer(ear.clone()));
    let guard = take(&keeper, "a");
    ear.wait_for(Event::Renewed, 1);
    assert_eq!(guard.release().expect("the store answers"), Released::Done);
    let renewals = tap.renewals();
    let second = take(&rig.keeper(), "a");
    assert_eq!(
        second.lost_signal().wait(rig.ttl(2_000)),
        WaitOutcome::TimedOut
    );
    assert_eq!(tap.renewals(), renewals, "the released lease was renewed");
    drop(second);
    rig.nothing_left();
    Ok(())
}

pub(super) fn keeper_dropped_before_its_guards(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper_with(rig.renewed(2_000));
    let guard = take(&keeper, "a");
    drop(keeper);
    let other = rig.keeper();
    let answer = other.try_lock_for("a", 2 * rig.ttl(2_000) + Duration::from_millis(100));
    assert!(
        matches!(answer, Ok(None)),
        "it is still renewed: {answer:?}"
    );
    assert!(guard.is_held());
    assert_eq!(guard.release().expect("the store answers"), Released::Done);
    drop(take(&other, "a"));
    rig.nothing_left();
    Ok(())
}
