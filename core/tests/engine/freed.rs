//! Waits that end while the lease of the last holder goes back to the store.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, ErrorKind};

use crate::answers::Releases;
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::{SECOND, eventually, failed, fixed, give_time, scripted, spawn_acquire};

/// Nothing says that the store is silent, and a holder was seen.
#[test]
fn wait_that_ends_during_a_release_that_its_holder_waits_for_is_busy() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder().handover_max(0));
    let guard = keeper.lock("a").unwrap();
    let waiting = spawn_acquire(&keeper, "a", AcquireOptions::new().wait(3 * SECOND));
    events.expect(Event::Contended);
    store.releases(Releases::Hang);
    thread::scope(|scope| {
        let release = scope.spawn(|| guard.release());
        store.wait_for("a", "release", 1);
        store.clock.advance(3 * SECOND);
        let ended = waiting.join().unwrap();
        store.releases(Releases::Work);
        assert!(ended.unwrap().is_none());
        release.join().unwrap().unwrap();
    });
}

/// The first request that the store does not answer is the keeper's own.
#[test]
fn attempt_behind_a_release_of_the_keeper_ends_when_that_fails() {
    let (store, keeper) = scripted();
    let guard = keeper.acquire("a", &fixed(12 * SECOND)).unwrap().unwrap();
    store.clock.advance(12 * SECOND);
    assert!(!guard.is_held());
    store.releases(Releases::Hang);
    drop(guard);
    store.wait_for("a", "release", 1);
    let attempt = spawn_acquire(&keeper, "a", AcquireOptions::new().wait(Duration::ZERO));
    give_time();
    store.releases(Releases::Unreachable);
    eventually("the attempt ends", || attempt.is_finished());
    assert_eq!(failed(attempt).kind(), ErrorKind::Unavailable);
    store.releases(Releases::Work);
}
