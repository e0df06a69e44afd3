//! What threads ask while a request is under way.

use std::sync::Arc;
use std::thread;

use lockkeeper_core::{AcquireOptions, CancelToken, ErrorKind, LockKeeper, Released};

use crate::answers::{Grants, Releases, Renewals};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

/// Starts a thread that makes a lone request for a name, while the store does not answer.
fn ask_without_answer(store: &Arc<ScriptedStore>, keeper: &LockKeeper) -> thread::JoinHandle<()> {
    store.grants(Grants::Silent);
    let asking = keeper.clone();
    let wait = 60 * SECOND;
    let thread = thread::spawn(move || drop(asking.try_lock_for("alone", wait).unwrap().unwrap()));
    store.wait_for("alone", "acquire", 1);
    thread
}

#[test]
fn lone_thread_asks_by_itself() {
    let (store, keeper) = batching();
    for _ in 0..3 {
        let guard = keeper.lock("a").unwrap();
        guard.renew().unwrap();
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    store.set(|state| {
        assert_eq!(state.batches, [1; 9]);
        assert_eq!(state.batches_by_keepers, [false; 9]);
    });
}

#[test]
fn queued_requests_overtake_one_that_hangs_and_are_answered() {
    let (store, keeper) = batching();
    let alone = ask_without_answer(&store, &keeper);
    let names = ["b", "c", "d"];
    let others = names.map(|name| {
        let keeper = keeper.clone();
        thread::spawn(move || keeper.lock(name).unwrap().release().unwrap())
    });
    // A batch with each of them is under way beside the request that hangs, or is queued.
    eventually("no batch was sent", || {
        let mut sent = 0;
        store.set(|state| sent = state.batches.len());
        sent > 0
    });
    store.grants(Grants::Work);
    for thread in others {
        assert_eq!(thread.join().unwrap(), Released::Done);
    }
    alone.join().unwrap();
    for name in names {
        assert_eq!(store.count(name, "acquire"), 1, "{name}");
    }
}

#[test]
fn part_that_hangs_has_no_request_of_another_wait() {
    let (store, keeper) = batching();
    let (near, far) = (keeper.lock("near").unwrap(), keeper.lock("far").unwrap());
    store.renewals("far", Renewals::Hang);
    thread::scope(|scope| {
        let hangs = scope.spawn(|| far.renew());
        store.wait_for("far", "renew", 1);
        near.renew().unwrap();
        drop(keeper.lock("b").unwrap());
        store.renewals("far", Renewals::Work);
        hangs.join().unwrap().unwrap();
    });
    store.set(|state| assert!(state.batches_by_keepers.iter().all(|by| !by)));
}

#[test]
fn names_of_two_parts_travel_in_a_batch_each() {
    let store = ScriptedStore::with_batches();
    let guards = store
        .keeper()
        .lock_all(["a", "b", "far", "far too"])
        .unwrap();
    guards.release().unwrap();
    store.set(|state| assert_eq!(state.batches, [2; 4]));
}

/// A third party's provider has the single verbs only.
#[test]
fn store_without_batches_gets_single_requests() {
    let (store, keeper) = scripted();
    let alone = ask_without_answer(&store, &keeper);
    let other = keeper.clone();
    let other = thread::spawn(move || drop(other.lock("b").unwrap()));
    store.wait_for("b", "acquire", 1);
    store.grants(Grants::Work);
    other.join().unwrap();
    alone.join().unwrap();
    store.set(|state| assert_eq!(state.batches, Vec::<usize>::new()));
}

#[test]
fn caller_that_is_due_or_cancelled_leaves_and_a_late_grant_is_given_back() {
    for (cancels, kind) in [(false, ErrorKind::Unknown), (true, ErrorKind::Cancelled)] {
        let (store, keeper) = batching();
        let alone = ask_without_answer(&store, &keeper);
        let cancel = CancelToken::new();
        let options = AcquireOptions::new().wait(3 * SECOND).cancel(&cancel);
        let late = spawn_acquire(&keeper, "late", options);
        store.wait_for("late", "acquire", 1);
        match cancels {
            true => cancel.cancel(),
            false => store.clock.advance(4 * SECOND),
        }
        assert_fails(late.join().unwrap(), kind);
        assert_eq!(store.count("late", "release"), 0);
        store.grants(Grants::Work);
        alone.join().unwrap();
        store.wait_for("late", "release", 1);
        drop(keeper.lock("late").unwrap());
    }
}

#[test]
fn release_that_is_due_is_finished_by_the_keeper_and_keeps_the_name() {
    let (store, keeper) = batching();
    let guard = keeper.lock("a").unwrap();
    let alone = ask_without_answer(&store, &keeper);
    store.set(|state| state.releases = Releases::Hang);
    let release = thread::spawn(move || guard.release());
    store.wait_for("a", "release", 1);
    store.clock.advance(6 * SECOND);
    assert_fails(release.join().unwrap(), ErrorKind::Unknown);
    let again = spawn_acquire(&keeper, "a", forever());
    give_time();
    // A request for another name overtakes what hangs.
    let other = spawn_acquire(&keeper, "b", forever());
    store.wait_for("b", "acquire", 1);
    assert_eq!(store.count("a", "acquire"), 1);
    store.releases(Releases::Work);
    store.grants(Grants::Work);
    alone.join().unwrap();
    assert_eq!(granted(again).release().unwrap(), Released::Done);
    drop(granted(other));
}

#[test]
fn renewal_that_is_due_brings_its_lease_back() {
    let (store, keeper) = batching();
    let guard = keeper.lock("a").unwrap();
    let alone = ask_without_answer(&store, &keeper);
    store.renewals("a", Renewals::Hang);
    thread::scope(|scope| {
        let renewed = scope.spawn(|| guard.renew());
        store.wait_for("a", "renew", 1);
        store.clock.advance(12 * SECOND);
        assert!(renewed.join().unwrap().is_err());
    });
    assert!(!guard.is_held());
    store.renewals("a", Renewals::Work);
    store.grants(Grants::Work);
    // The lease was renewed without a guard, so it is released.
    store.wait_for("a", "release", 1);
    alone.join().unwrap();
    drop(guard);
    drop(keeper.lock("a").unwrap());
}

/// A thread that waits gets the connection that a batch did not find.
#[test]
fn attempt_without_a_connection_in_a_batch_is_made_alone() {
    let (store, keeper) = batching();
    let guard = keeper.lock("alone").unwrap();
    store.releases(Releases::Hang);
    let release = thread::spawn(move || guard.release());
    store.wait_for("alone", "release", 1);
    store.grants(Grants::BatchExhausted);
    let guards = [
        keeper.lock("b").unwrap(),
        keeper.try_lock("c").unwrap().unwrap(),
    ];
    store.set(|state| assert!(!state.batches.is_empty()));
    store.releases(Releases::Work);
    release.join().unwrap().unwrap();
    drop(guards);
}
