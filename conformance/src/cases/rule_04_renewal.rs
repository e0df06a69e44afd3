//! Rule 4: a lease is renewed while its guard exists, and a missing reply moves no deadline.

use std::time::{Duration, Instant};

use lockkeeper_core::{LeasePolicy, LockGuard, Released, WaitOutcome};

use crate::modes::{assert_not_granted, stays_busy, take_in};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, is_busy, take};

fn renewed(ttl: Duration) -> LeasePolicy {
    LeasePolicy::Renewed { ttl }
}

/// The keeper is dropped meanwhile, and its guard is held on.
pub(super) fn lease_is_renewed_beyond_its_ttl(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        rig.with_renewed_ttl(5_000, |ttl, _| {
            let held = take_in(&rig.keeper_with(renewed(ttl)), &name, pair.held);
            stays_busy(&rig.keeper(), &name, pair.rival, ttl);
            assert!(held.is_held(), "{pair:?}");
            let released = held.release().expect("the store replies");
            assert_eq!(released, Released::Done, "{pair:?}");
            Ok(())
        })
    })
}

/// A renewal must not be its own reason for the next one.
pub(super) fn long_lease_is_renewed_less_often_than_a_short_one(rig: &Rig<'_>) -> Outcome {
    rig.with_renewed_ttl(600, |ttl, _| {
        let (long, long_recorder) = rig.recorded_keeper();
        let short_recorder = rig.recorder();
        let short = rig.builder().lease(renewed(ttl));
        let short = build(short.observer(short_recorder.clone()));
        let guards = [take(&long, "long"), take(&short, "short")];
        short_recorder.wait_for(Event::Renewed, 6);
        let renewed = long_recorder.count(Event::Renewed);
        assert!(
            renewed < 4,
            "a lease of a minute was renewed {renewed} times meanwhile"
        );
        for guard in guards {
            assert_eq!(guard.release().expect("the store replies"), Released::Done);
        }
        rig.nothing_left();
        Ok(())
    })
}

pub(super) fn outage_shorter_than_the_lease_keeps_the_lock(rig: &Rig<'_>) -> Outcome {
    rig.with_renewed_ttl(9_000, |ttl, lateness| {
        let recorder = rig.recorder();
        let builder = rig.builder().lease(renewed(ttl));
        let keeper = build(builder.observer(recorder.clone()));
        let guard = take(&keeper, "a");
        let fault = rig.cut_off()?;
        let renewed = recorder.count(Event::Renewed);
        // The renewal that is due after a third of the ttl fails.
        rig.until("half of the lease has passed", || {
            guard.remaining() < ttl / 2
        });
        assert_eq!(
            recorder.count(Event::Renewed),
            renewed,
            "an unreachable store renewed the lease"
        );
        let recovers = Instant::now();
        drop(fault);
        // A server that is started again may take longer than the rest of the lease.
        lateness.add(recovers.elapsed() / 4);
        recorder.wait_for(Event::Renewed, renewed + 1);
        assert!(guard.is_held());
        assert!(is_busy(&rig.keeper(), "a"));
        assert_eq!(guard.release().expect("the store replies"), Released::Done);
        assert_eq!(recorder.count(Event::Lost), 0);
        rig.nothing_left();
        Ok(())
    })
}

pub(super) fn outage_longer_than_the_lease_loses_the_lock(rig: &Rig<'_>) -> Outcome {
    // A release waits for the store for up to its ttl.
    let keeper = rig.keeper_with(rig.renewed(4_000));
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
    rig.with_renewed_ttl(5_000, |ttl, _| {
        let (keeper, other) = (rig.keeper_with(renewed(ttl)), rig.keeper());
        let guards = [take(&keeper, "a"), take(&keeper, "b")];
        let fault = rig.slow_down(ttl / 20)?;
        // A waiter may time out on the slow store, but must not be granted the name.
        assert_not_granted(other.try_lock_for("a", ttl * 6 / 5));
        assert!(guards.iter().all(LockGuard::is_held), "{guards:?}");
        drop(fault);
        for guard in guards {
            assert_eq!(guard.release().expect("the store replies"), Released::Done);
        }
        rig.nothing_left();
        Ok(())
    })
}
