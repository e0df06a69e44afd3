//! Grants that are confirmed by a renewal, and whose callers do not wait for it.

use lockkeeper_core::{AcquireOptions, ErrorKind, LockKeeper};

use crate::answers::{Grants, Releases, Renewals};
use crate::scripted_store::ScriptedStore;
use crate::steps::{SECOND, batching, eventually, failed, spawn_acquire};

/// The reply to the confirmation comes after the caller stopped waiting.
#[test]
fn lease_of_a_caller_that_has_gone_is_released_unless_it_had_ended() {
    for (renewal, release, releases) in [
        (Renewals::Work, Releases::Work, 1),
        (Renewals::Work, Releases::RequestLost, 2),
        (Renewals::Fail, Releases::Work, 1),
        (Renewals::Lost, Releases::Work, 0),
    ] {
        let (store, keeper) = batching();
        store.grants(Grants::Late(5 * SECOND));
        store.renewals("late", Renewals::Hang);
        let late = spawn_acquire(&keeper, "late", AcquireOptions::new());
        store.wait_for("late", "renew", 1);
        store.clock.advance(6 * SECOND);
        assert_eq!(failed(late).kind(), ErrorKind::Unknown);
        store.releases(release);
        store.renewals("late", renewal);
        match releases {
            0 => wait_until_batch_is_done(&store, &keeper),
            _ => store.wait_for("late", "release", releases),
        }
        eventually("no release is left", || keeper.pending_releases() == 0);
        assert_eq!(store.count("late", "release"), releases, "{renewal:?}");
    }
}

/// A thread asks alone when no batch is under way.
fn wait_until_batch_is_done(store: &ScriptedStore, keeper: &LockKeeper) {
    let batches = || {
        let mut count = 0;
        store.set(|state| count = state.batches_by_keepers.iter().filter(|by| **by).count());
        count
    };
    eventually("the batch is done", || {
        let before = batches();
        drop(keeper.lock("other").unwrap());
        batches() == before
    });
}
