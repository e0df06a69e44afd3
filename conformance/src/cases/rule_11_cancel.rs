//! Rule 11: a wait can be cancelled, alone or with its keeper, and leaves nothing in the store.

use std::thread;

use lockkeeper_core::{AcquireOptions, CancelToken, Error, ErrorKind, LockGuard};

use crate::modes::{in_mode, take_in};
use crate::recorder::Event;
use crate::rig::{Outcome, Rig, take};

fn forever(cancel: &CancelToken) -> AcquireOptions {
    AcquireOptions::new().wait_forever().cancel(cancel)
}

fn assert_cancelled(answer: Result<Option<LockGuard>, Error>) {
    let error = answer.map(drop).expect_err("the acquisition is cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
}

/// The waiter of a second keeper waits behind one that is cancelled in the store.
pub(super) fn cancel_in_the_store(rig: &Rig<'_>) -> Outcome {
    rig.each_pair(|pair| {
        let name = pair.name();
        let ((first, first_waits), (second, second_waits)) =
            (rig.recorded_keeper(), rig.recorded_keeper());
        let held = take_in(&rig.keeper(), &name, pair.held);
        let cancel = CancelToken::new();
        let options = in_mode(pair.rival).wait_forever().cancel(&cancel);
        thread::scope(|scope| {
            let cancelled = scope.spawn(|| first.acquire(&name, &options));
            first_waits.wait_for(Event::Contended, 1);
            let behind = scope.spawn(|| drop(take_in(&second, &name, pair.rival)));
            second_waits.wait_for(Event::Contended, 1);
            cancel.cancel();
            // A join would hang if the cancellation were ignored.
            rig.until("the wait has ended", || cancelled.is_finished());
            assert_cancelled(cancelled.join().expect("the thread does not panic"));
            assert!(held.is_held());
            drop(held);
            behind.join().expect("the next waiter is granted the name");
        });
        Ok(())
    })
}

/// The release or the cancellation may come first. In both cases no lock remains without a guard.
pub(super) fn cancel_during_a_release(rig: &Rig<'_>) -> Outcome {
    let (holder, (keeper, recorder)) = (rig.keeper(), rig.recorded_keeper());
    for round in 1..=15 {
        let held = take(&holder, "a");
        let cancel = CancelToken::new();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| keeper.acquire("a", &forever(&cancel)));
            recorder.wait_for(Event::Contended, round);
            scope.spawn(|| drop(held));
            cancel.cancel();
            match waiter.join().expect("the thread does not panic") {
                Ok(guard) => drop(guard.expect("the wait has no end")),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}"),
            }
        });
        rig.nothing_left();
        drop(take(&holder, "a"));
    }
    Ok(())
}

/// One thread waits in the store and one in the local queue; both end, and the guard of the keeper stays.
pub(super) fn close_ends_the_waits_of_a_keeper(rig: &Rig<'_>) -> Outcome {
    let (holder, (keeper, recorder)) = (rig.keeper(), rig.recorded_keeper());
    let (held, kept) = (take(&holder, "a"), take(&keeper, "kept"));
    thread::scope(|scope| {
        let waiters = [1, 2].map(|count| {
            let waiter = scope.spawn(|| keeper.acquire("a", &AcquireOptions::new().wait_forever()));
            recorder.wait_for(Event::Contended, count);
            waiter
        });
        keeper.close();
        rig.until("all waits have ended", || {
            waiters.iter().all(|waiter| waiter.is_finished())
        });
        for waiter in waiters {
            assert_cancelled(waiter.join().expect("the thread does not panic"));
        }
        assert!(held.is_held());
        drop(held);
    });
    assert_cancelled(keeper.try_lock("b"));
    kept.renew().expect("a guard outlives the close");
    drop(kept);
    rig.nothing_left();
    drop(take(&holder, "a"));
    Ok(())
}
