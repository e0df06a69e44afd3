//! Rule 4: a lease is renewed while its guard exists, and a missing reply moves no deadline.

use lockkeeper_core::{ErrorKind, LockGuard, Mode, Released, WaitOutcome};

use crate::modes::stays_busy;
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, is_busy, take, take_with};
use crate::tap::Fault;

pub(super) fn lease_is_renewed_beyond_its_ttl(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(5_000);
    let first = take(&rig.keeper_with(lease), "a");
    let second = rig.keeper();
    stays_busy(&second, "a", Mode::Exclusive, lease.ttl());
    assert!(first.is_held());
    assert_eq!(first.release().expect("the store replies"), Released::Done);
    drop(take(&second, "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn manual_renewal_extends_a_fixed_lease(rig: &Rig<'_>) -> Outcome {
    let lease = rig.fixed(8_000);
    let guard = take_with(&rig.keeper(), "a", lease);
    let full = guard.remaining();
    rig.until("a quarter of the lease has passed", || {
        guard.remaining() < full - full / 4
    });
    let before = guard.remaining();
    guard.renew().expect("the store replies");
    let after = guard.remaining();
    assert!(
        after > before,
        "{before:?} remained, and {after:?} after a renewal"
    );
    assert!(after <= lease.ttl());
    assert_eq!(guard.release().expect("the store replies"), Released::Done);
    Ok(())
}

pub(super) fn failed_renewal_is_retried_before_the_deadline(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let recorder = rig.recorder();
    let keeper = build(builder.lease(rig.renewed(9_000)).observer(recorder.clone()));
    let guard = take(&keeper, "a");
    tap.set(Fault::Fails(ErrorKind::Unavailable));
    recorder.wait_for(Event::RenewalUnknown, 1);
    assert_eq!(recorder.count(Event::Renewed), 0);
    tap.set(Fault::None);
    recorder.wait_for(Event::Renewed, 1);
    assert!(guard.is_held());
    assert_eq!(guard.release().expect("the store replies"), Released::Done);
    assert_eq!(recorder.count(Event::Lost), 0);
    Ok(())
}

pub(super) fn renewals_that_fail_until_the_deadline_lose_the_lock(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let recorder = rig.recorder();
    let keeper = build(builder.lease(rig.renewed(600)).observer(recorder.clone()));
    let guard = take(&keeper, "a");
    tap.set(Fault::Fails(ErrorKind::Unknown));
    assert_eq!(guard.lost_signal().wait(rig.timeout()), WaitOutcome::Lost);
    recorder.wait_for(Event::Lost, 1);
    tap.set(Fault::None);
    drop(take(&rig.keeper(), "a"));
    assert!(!guard.is_held(), "a lost guard stays lost");
    assert_eq!(
        guard.release().expect("the store replies"),
        Released::AlreadyLost
    );
    assert_eq!(recorder.count(Event::Lost), 1, "a loss is reported once");
    rig.nothing_left();
    Ok(())
}

pub(super) fn outage_shorter_than_the_lease_keeps_the_lock(rig: &Rig<'_>) -> Outcome {
    let recorder = rig.recorder();
    let lease = rig.renewed(9_000);
    let keeper = build(rig.builder().lease(lease).observer(recorder.clone()));
    let guard = take(&keeper, "a");
    let fault = rig.cut_off()?;
    let renewed = recorder.count(Event::Renewed);
    // The renewal that is due after a third of the ttl fails.
    rig.until("half of the lease has passed", || {
        guard.remaining() < lease.ttl() / 2
    });
    assert_eq!(
        recorder.count(Event::Renewed),
        renewed,
        "an unreachable store renewed the lease"
    );
    drop(fault);
    recorder.wait_for(Event::Renewed, renewed + 1);
    assert!(guard.is_held());
    assert!(is_busy(&rig.keeper(), "a"));
    assert_eq!(guard.release().expect("the store replies"), Released::Done);
    assert_eq!(recorder.count(Event::Lost), 0);
    rig.nothing_left();
    Ok(())
}

pub(super) fn outage_longer_than_the_lease_loses_the_lock(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper_with(rig.renewed(600));
    let guard = take(&keeper, "a");
    let fault = rig.cut_off()?;
    assert_eq!(guard.lost_signal().wait(rig.timeout()), WaitOutcome::Lost);
    drop(fault);
    let other = take(&rig.keeper(), "a");
    assert!(other.token() > guard.token());
    assert!(!guard.is_held(), "a lost guard stays lost");
    assert_eq!(
        guard.release().expect("the store replies"),
        Released::AlreadyLost
    );
    assert!(other.is_held());
    assert_eq!(other.release().expect("the store replies"), Released::Done);
    rig.nothing_left();
    Ok(())
}

pub(super) fn slow_store_keeps_its_leases(rig: &Rig<'_>) -> Outcome {
    let lease = rig.renewed(5_000);
    let (keeper, other) = (rig.keeper_with(lease), rig.keeper());
    let guards = [take(&keeper, "a"), take(&keeper, "b")];
    let fault = rig.slow_down(lease.ttl() / 20)?;
    // A waiter may time out on the slow store, but must not be granted the name.
    match other.try_lock_for("a", lease.ttl() * 6 / 5) {
        Ok(None) => {}
        Ok(Some(granted)) => panic!("the name is held, and {granted:?} was granted"),
        Err(error) => assert!(error.is_retryable(), "{error:?}"),
    }
    assert!(guards.iter().all(LockGuard::is_held), "{guards:?}");
    drop(fault);
    for guard in guards {
        assert_eq!(guard.release().expect("the store replies"), Released::Done);
    }
    rig.nothing_left();
    Ok(())
}

pub(super) fn panic_in_a_renewal_does_not_stop_renewals(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let recorder = rig.recorder();
    let keeper = build(builder.lease(rig.renewed(9_000)).observer(recorder.clone()));
    let guard = take(&keeper, "a");
    tap.set(Fault::RenewalPanics);
    recorder.wait_for(Event::RenewalUnknown, 1);
    tap.set(Fault::None);
    recorder.wait_for(Event::Renewed, 1);
    assert!(guard.is_held());
    Ok(())
}

pub(super) fn hanging_renewal_does_not_delay_other_leases(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder.lease(rig.renewed(5_000)));
    let hanging = take(&keeper, "hangs");
    let others: Vec<_> = (0..8)
        .map(|n| take(&keeper, &format!("other {n}")))
        .collect();
    tap.set(Fault::Hangs("hangs"));
    assert_eq!(hanging.lost_signal().wait(rig.timeout()), WaitOutcome::Lost);
    // Renewals that stopped with the hanging one, after a third of the ttl, would end these leases
    // within another third from now.
    assert_eq!(
        others[0].lost_signal().wait(rig.ttl(5_000) / 2),
        WaitOutcome::TimedOut
    );
    for other in others {
        assert!(other.is_held(), "{:?} was lost", other.name());
        assert_eq!(other.release().expect("the store replies"), Released::Done);
    }
    Ok(())
}

pub(super) fn no_renewal_after_release(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let recorder = rig.recorder();
    let keeper = build(builder.lease(rig.renewed(5_000)).observer(recorder.clone()));
    let guard = take(&keeper, "a");
    recorder.wait_for(Event::Renewed, 1);
    assert_eq!(guard.release().expect("the store replies"), Released::Done);
    let renewals = tap.renewals();
    let second = take(&rig.keeper(), "a");
    // A renewal would be due after a third of the ttl.
    assert_eq!(
        second.lost_signal().wait(rig.ttl(5_000) / 2),
        WaitOutcome::TimedOut
    );
    assert_eq!(tap.renewals(), renewals, "the released lease was renewed");
    drop(second);
    rig.nothing_left();
    Ok(())
}

pub(super) fn guard_is_renewed_after_its_keeper_is_dropped(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper_with(rig.renewed(5_000));
    let guard = take(&keeper, "a");
    drop(keeper);
    let other = rig.keeper();
    stays_busy(&other, "a", Mode::Exclusive, rig.ttl(5_000));
    assert!(guard.is_held());
    assert_eq!(guard.release().expect("the store replies"), Released::Done);
    drop(take(&other, "a"));
    rig.nothing_left();
    Ok(())
}
