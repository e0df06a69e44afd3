//! Rule 14: a wait rides an outage out, and a single attempt, or one with `Outage::Fail`, does not.

use std::error::Error as _;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, Error, ErrorKind, LockGuard, Outage};

use crate::recorder::Event;
use crate::rig::{Outcome, Rig, build, take};

/// Checks the error of an acquisition in an outage. A store that took the request and did not reply may
/// have granted the lock.
fn assert_unreachable(answer: Result<Option<LockGuard>, Error>) -> Error {
    let error = answer.map(drop).expect_err("the store is unreachable");
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    error
}

pub(super) fn wait_gets_the_lock_after_an_outage(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    // Some stores connect with the first lock.
    drop(take(&keeper, "warm"));
    let fault = rig.cut_off()?;
    assert_unreachable(keeper.try_lock("any"));
    let before = tap.owners().len();
    thread::scope(|scope| {
        let waiters = ["a", "b", "a"].map(|name| {
            let keeper = &keeper;
            scope.spawn(move || drop(take(keeper, name)))
        });
        rig.until("the store is requested", || tap.owners().len() > before);
        drop(fault);
        for waiter in waiters {
            waiter.join().expect("the lock is granted");
        }
    });
    rig.nothing_left();
    Ok(())
}

pub(super) fn waiter_in_the_store_gets_the_lock_after_an_outage(rig: &Rig<'_>) -> Outcome {
    let (holder, (keeper, recorder)) = (rig.keeper(), rig.recorded_keeper());
    let held = take(&holder, "a");
    drop(take(&keeper, "warm"));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(take(&keeper, "a")));
        recorder.wait_for(Event::Contended, 1);
        let fault = rig.cut_off()?;
        assert_unreachable(holder.try_lock("any"));
        drop(fault);
        // The store may need another connection.
        rig.until("the holder reaches the store", || held.renew().is_ok());
        drop(held);
        waiter.join().expect("the lock is granted");
        Ok(())
    })?;
    rig.nothing_left();
    Ok(())
}

pub(super) fn outage_beyond_the_wait_is_unavailable(rig: &Rig<'_>) -> Outcome {
    let keeper = rig.keeper();
    drop(take(&keeper, "warm"));
    let fault = rig.cut_off()?;
    let wait = Duration::from_millis(300);
    let error = assert_unreachable(keeper.try_lock_for("a", wait));
    assert!(error.to_string().contains("for the last"), "{error:?}");
    assert!(error.source().is_some(), "{error:?}");
    drop(fault);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}

pub(super) fn outage_fail_returns_at_the_first_failure(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    drop(take(&keeper, "warm"));
    let fault = rig.cut_off()?;
    let before = tap.owners().len();
    let options = AcquireOptions::new().wait(Duration::from_millis(300));
    let error = assert_unreachable(keeper.acquire("a", &options.outage(Outage::Fail)));
    // A lost reply has to be asked for again.
    if error.kind() == ErrorKind::Unavailable {
        assert_eq!(tap.owners().len(), before + 1, "it was asked again");
    }
    drop(fault);
    drop(take(&keeper, "a"));
    rig.nothing_left();
    Ok(())
}
