//! A wait can be cancelled, and nothing stays behind.

use std::thread;

use lockkeeper_core::{AcquireOptions, CancelToken, Error, ErrorKind, LockGuard, LockKeeper};

use crate::ear::{Ear, Event};
use crate::rig::{Outcome, Rig, build, is_busy, take};

fn forever(cancel: &CancelToken) -> AcquireOptions {
    AcquireOptions::new().wait_forever().cancel(cancel)
}

fn assert_cancelled(answer: Result<Option<LockGuard>, Error>) {
    let error = answer.map(drop).expect_err("it was cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
}

/// Cancels one that waits for `held` through `keeper` while another waits behind it.
fn cancel_one(rig: &Rig<'_>, keeper: &LockKeeper, ear: &Ear, held: LockGuard) {
    let cancel = CancelToken::new();
    thread::scope(|scope| {
        let cancelled = scope.spawn(|| keeper.acquire("a", &forever(&cancel)));
        ear.wait_for(Event::Contended, 1);
        let behind = scope.spawn(|| drop(take(keeper, "a")));
        ear.wait_for(Event::Contended, 2);
        cancel.cancel();
        // Not by joining: where the cancelling is ignored, this is to fail and not to hang.
        rig.until("the cancelled wait ends", || cancelled.is_finished());
        assert_cancelled(cancelled.join().expect("no panic"));
        assert!(held.is_held());
        drop(held);
        behind.join().expect("the next one is granted");
    });
}

pub(super) fn in_line(rig: &Rig<'_>) -> Outcome {
    let (keeper, ear) = rig.heard_keeper();
    let held = take(&keeper, "a");
    cancel_one(rig, &keeper, &ear, held);
    rig.nothing_left();
    Ok(())
}

pub(super) fn in_the_store(rig: &Rig<'_>) -> Outcome {
    let (keeper, ear) = rig.heard_keeper();
    let held = take(&rig.keeper(), "a");
    cancel_one(rig, &keeper, &ear, held);
    rig.nothing_left();
    assert!(!is_busy(&rig.keeper(), "a"));
    Ok(())
}

pub(super) fn before_it_began(rig: &Rig<'_>) -> Outcome {
    let (builder, tap) = rig.tapped();
    let keeper = build(builder);
    let cancel = CancelToken::new();
    cancel.cancel();
    assert_cancelled(keeper.acquire("a", &forever(&cancel)));
    assert!(tap.owners().is_empty(), "the store was asked");
    drop(take(&keeper, "a"));
    Ok(())
}

/// Whichever comes first, there is no guard and no lock that nobody has.
pub(super) fn as_it_is_released(rig: &Rig<'_>) -> Outcome {
    let (holder, (keeper, ear)) = (rig.keeper(), rig.heard_keeper());
    for round in 1..=30 {
        let held = take(&holder, "a");
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| keeper.acquire("a", &forever(&cancel)));
            ear.wait_for(Event::Contended, round);
            scope.spawn(|| drop(held));
            cancel.cancel();
            match waiter.join().expect("no panic") {
                Ok(guard) => drop(guard.expect("it would wait for ever")),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}"),
            }
        });
        rig.nothing_left();
        drop(take(&holder, "a"));
    }
    Ok(())
}
