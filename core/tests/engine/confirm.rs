//! Grants that are confirmed by a renewal, and whose callers do not wait for it.

use lockkeeper_core::{AcquireOptions, ErrorKind};

use crate::answers::{Grants, Renewals};
use crate::steps::{SECOND, batching, eventually, failed, spawn_acquire};

/// The reply to the confirmation comes when the caller has gone.
#[test]
fn lease_of_a_caller_that_has_gone_is_released_unless_it_had_ended() {
    for (renewal, releases) in [
        (Renewals::Work, 1),
        (Renewals::Fail, 1),
        (Renewals::Lost, 0),
    ] {
        let (store, keeper) = batching();
        store.grants(Grants::Late(5 * SECOND));
        store.renewals("late", Renewals::Hang);
        let late = spawn_acquire(&keeper, "late", AcquireOptions::new());
        store.wait_for("late", "renew", 1);
        store.clock.advance(6 * SECOND);
        assert_eq!(failed(late).kind(), ErrorKind::Unknown);
        store.renewals("late", renewal);
        // A thread asks alone when the batch with the confirmation is done.
        eventually("the batch is done", || {
            let batches = || {
                let mut count = 0;
                store.set(|state| count = state.batches.len());
                count
            };
            let before = batches();
            drop(keeper.lock("other").unwrap());
            batches() == before
        });
        store.wait_for("late", "release", releases);
        eventually("no release is left", || keeper.pending_releases() == 0);
        assert_eq!(store.count("late", "release"), releases, "{renewal:?}");
    }
}
