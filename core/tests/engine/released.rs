//! Releases whose holder waits for the answer, while the store does not answer: the keeper goes on with them, as after
//! a drop.

use std::thread;

use lockkeeper_core::{ErrorKind, Released};

use crate::answers::Releases;
use crate::dropped::observed;
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn release_without_an_answer_is_finished_by_the_keeper_and_keeps_the_name() {
    for (how, kind) in [
        (Releases::Unreachable, ErrorKind::Unavailable),
        (Releases::PoolExhausted, ErrorKind::PoolExhausted),
    ] {
        for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
            let (keeper, ends) = observed(store.builder());
            let guard = keeper.lock("a").unwrap();
            store.releases(how);
            let release = thread::spawn(move || guard.release());
            store.wait_for("a", "release", 2);
            store.clock.advance(2 * SECOND);
            assert_fails(release.join().unwrap(), kind);
            ends.expect("a", Err(kind));
            assert_eq!(keeper.pending_releases(), 1);
            let again = spawn_acquire(&keeper, "a", forever());
            give_time();
            assert_eq!(store.count("a", "acquire"), 1, "{how:?}");
            store.releases(Releases::Work);
            let again = granted(again);
            assert!(ends.is_empty(), "it is reported once");
            drop(again);
        }
    }
}

#[test]
fn holder_that_still_waits_gets_the_answer_of_the_keeper() {
    for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
        let (keeper, ends) = observed(store.builder());
        let guard = keeper.lock("a").unwrap();
        store.releases(Releases::Unreachable);
        let release = thread::spawn(move || guard.release());
        store.wait_for("a", "release", 2);
        store.releases(Releases::Work);
        assert_eq!(release.join().unwrap().unwrap(), Released::Done);
        ends.expect("a", Ok(Released::Done));
        assert!(ends.is_empty(), "it is reported once");
        assert!(store.releases_by_keepers("a").starts_with(&[false, true]));
        drop(keeper.try_lock("a").unwrap().expect("it is free"));
    }
}

#[test]
fn set_without_an_answer_is_finished_by_the_keeper_and_keeps_its_names() {
    for (how, asked, passed, kind) in [
        (Releases::Unreachable, 2, 2, ErrorKind::Unavailable),
        (Releases::Hang, 1, 6, ErrorKind::Unknown),
    ] {
        let store = ScriptedStore::with_batches();
        let (keeper, ends) = observed(store.builder());
        let guards = keeper.lock_all(["a", "b", "far c"]).unwrap();
        store.releases(how);
        let release = thread::spawn(move || guards.release());
        for name in ["b", "far c"] {
            store.wait_for(name, "release", asked);
        }
        store.clock.advance(passed * SECOND);
        assert_fails(release.join().unwrap(), kind);
        for name in ["far c", "b", "a"] {
            ends.expect(name, Err(kind));
        }
        assert_eq!(keeper.pending_releases(), 3);
        let again = ["a", "b", "far c"].map(|name| spawn_acquire(&keeper, name, forever()));
        give_time();
        assert_eq!(store.requests(), 3, "{how:?}");
        store.releases(Releases::Work);
        drop(again.map(granted));
    }
}

#[test]
fn part_that_hangs_keeps_no_name_of_another_part() {
    let store = ScriptedStore::with_batches();
    let (keeper, ends) = observed(store.builder());
    let guards = keeper.lock_all(["a", "far b"]).unwrap();
    store.releases(Releases::HangFor("far b"));
    let release = thread::spawn(move || guards.release());
    store.wait_for("far b", "release", 1);
    let again = spawn_acquire(&keeper, "a", forever());
    store.wait_for("a", "acquire", 2);
    drop(granted(again));
    store.releases(Releases::Work);
    assert_eq!(release.join().unwrap().unwrap(), Released::Done);
    for name in ["a", "far b", "a"] {
        ends.expect(name, Ok(Released::Done));
    }
}
