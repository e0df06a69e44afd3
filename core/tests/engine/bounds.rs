//! What bounds an acquisition: it ends by its deadline, a little later, or at a cancel, whatever the store does.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, Clock, ErrorKind};

use crate::answers::{Grants, Releases, Renewals};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

/// How much later than its deadline an acquisition stops to wait for the store.
const GRACE: Duration = Duration::from_millis(80);

#[test]
fn all_attempts_of_an_acquisition_have_one_end() {
    for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
        let keeper = store.keeper();
        let ends = |lock: &dyn Fn() -> bool| {
            store.set(|state| state.ends.clear());
            store.grants(Grants::ReplyLost { then_works: true });
            let began = store.clock.now();
            assert!(lock());
            let mut ends = Vec::new();
            store.set(|state| ends.clone_from(&state.ends));
            let ends = ends.into_iter().map(|end| end.saturating_since(began));
            ends.collect::<Vec<_>>()
        };
        let wait = Duration::from_millis(50);
        let waiting = ends(&|| keeper.try_lock_for("a", wait).unwrap().is_some());
        assert_eq!(waiting, [wait + GRACE; 2]);
        let attempt = ends(&|| keeper.try_lock("b").unwrap().is_some());
        assert_eq!(attempt, [2 * SECOND; 2]);
    }
}

#[test]
fn short_wait_ends_in_time_behind_a_request_that_hangs() {
    let (store, keeper) = batching();
    let short = Duration::from_millis(50);
    store.grants(Grants::Silent);
    thread::scope(|scope| {
        let alone = scope.spawn(|| keeper.acquire("alone", &forever()));
        store.wait_for("alone", "acquire", 1);
        let waiting = scope.spawn(|| keeper.try_lock_for("a", short));
        store.wait_for("a", "acquire", 1);
        store.clock.advance(short + GRACE);
        assert_fails(waiting.join().unwrap(), ErrorKind::Unknown);
        store.grants(Grants::Work);
        assert!(alone.join().unwrap().unwrap().is_some());
    });
    // What the store has granted late is given back.
    store.wait_for("a", "release", 1);
}

#[test]
fn cancel_ends_an_attempt_without_a_reply() {
    let (store, keeper) = batching();
    store.grants(Grants::Silent);
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().cancel(&cancel);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.acquire("a", &options));
        store.wait_for("a", "acquire", 1);
        cancel.cancel();
        assert_fails(waiting.join().unwrap(), ErrorKind::Cancelled);
    });
    store.grants(Grants::Work);
    // What the store has granted late is given back.
    store.wait_for("a", "release", 1);
    drop(keeper.lock("a").unwrap());
}

#[test]
fn silent_confirmation_ends_with_the_wait_or_at_a_cancel() {
    for cancels in [false, true] {
        let (store, keeper) = scripted();
        store.grants(Grants::Late(2 * SECOND));
        store.renewals("a", Renewals::Hang);
        let cancel = CancelToken::new();
        let options = AcquireOptions::new().wait(3 * SECOND).cancel(&cancel);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| keeper.acquire("a", &options));
            store.wait_for("a", "renew", 1);
            let kind = match cancels {
                true => {
                    cancel.cancel();
                    ErrorKind::Cancelled
                }
                false => {
                    store.clock.advance(SECOND + GRACE);
                    ErrorKind::Unknown
                }
            };
            assert_fails(waiting.join().unwrap(), kind);
        });
        assert_eq!(store.count("a", "release"), 0);
        store.renewals("a", Renewals::Work);
        store.wait_for("a", "release", 1);
        drop(keeper.lock("a").unwrap());
    }
}

/// The lease that the silent confirmation is about is released later, and that must not end the next grant.
#[test]
fn request_behind_a_silent_confirmation_has_another_owner() {
    let (store, keeper) = scripted();
    store.grants(Grants::Late(2 * SECOND));
    store.renewals("a", Renewals::Hang);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("a", 60 * SECOND));
        store.wait_for("a", "renew", 1);
        // No answer is of use behind the end of the lease.
        store.clock.advance(12 * SECOND);
        store.wait_for("a", "acquire", 2);
        store.set(|state| assert_ne!(state.owners[0], state.owners[1]));
        store.renewals("a", Renewals::Work);
        drop(waiting.join().unwrap());
    });
}

/// The lease of a grant that comes too late is released by another thread, and that must not end the next grant.
#[test]
fn request_behind_a_late_grant_has_another_owner() {
    let (store, keeper) = scripted();
    store.grants(Grants::GrantedWait(3 * SECOND));
    drop(keeper.try_lock_for("a", 2 * SECOND));
    store.set(|state| {
        assert_eq!(state.owners.len(), 2);
        assert_ne!(state.owners[0], state.owners[1]);
    });
    store.wait_for("a", "release", 1);
}

/// A request that has used up its time leaves the releases of the other names to the keeper.
#[test]
fn set_that_ends_without_a_reply_waits_for_no_release() {
    let (store, keeper) = batching();
    store.grants(Grants::SilentFor("far b"));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_all_for(["a", "far b"], SECOND / 5));
        store.wait_for("a", "acquire", 1);
        store.wait_for("far b", "acquire", 1);
        store.clock.advance(SECOND / 5 + GRACE);
        assert_fails(waiting.join().unwrap(), ErrorKind::Unknown);
        store.wait_for("a", "release", 1);
        assert_eq!(store.releases_by_keepers("a"), [true]);
        store.grants(Grants::Work);
    });
    store.wait_for("far b", "release", 1);
}

#[test]
fn silent_release_of_an_unconfirmed_grant_ends_with_the_wait() {
    let (store, keeper) = scripted();
    store.grants(Grants::Late(2 * SECOND));
    store.renewals("a", Renewals::Fail);
    store.releases(Releases::ReplyLostLate);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("a", 3 * SECOND));
        store.wait_for("a", "release", 1);
        store.clock.advance(SECOND + GRACE);
        assert_fails(waiting.join().unwrap(), ErrorKind::Unknown);
    });
    store.releases(Releases::Work);
    // The first release got no reply.
    store.wait_for("a", "release", 2);
}

#[test]
fn silent_abandon_delays_no_caller_and_ends_before_the_name_is_requested_again() {
    let (store, keeper) = scripted();
    store.set(|state| state.abandons_hang = true);
    store.grants(Grants::ReplyLost { then_works: false });
    assert_fails(keeper.try_lock("a"), ErrorKind::Unknown);
    store.wait_for("a", "abandon", 1);
    let requests = store.count("a", "acquire");
    store.grants(Grants::Work);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.lock("a"));
        give_time();
        assert_eq!(store.count("a", "acquire"), requests);
        store.set(|state| state.abandons_hang = false);
        drop(waiting.join().unwrap().unwrap());
    });
}
