//! Which attempts go with a batch of the keeper's threads, and which are made once more alone.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, ErrorKind, LockKeeper};

use crate::answers::Grants;
use crate::scripted_store::ScriptedStore;
use crate::steps::{
    Acquiring, SECOND, assert_fails, batching, eventually, failed, forever, give_time, granted,
    scripted, spawn_acquire,
};

fn batches(store: &ScriptedStore) -> Vec<usize> {
    let mut batches = Vec::new();
    store.set(|state| batches.clone_from(&state.batches));
    batches
}

/// No cancel ends a call of the provider that gets no reply.
#[test]
fn attempt_that_can_be_cancelled_goes_with_a_batch_where_the_store_has_them() {
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().cancel(&cancel);
    for ((store, keeper), sent) in [(scripted(), &[][..]), (batching(), &[true])] {
        let guard = keeper.acquire("a", &options).unwrap();
        store.set(|state| assert_eq!(state.batches_by_keepers, sent));
        drop(guard);
    }
}

#[test]
fn attempt_of_a_batch_that_is_busy_is_made_again_alone_where_it_may_wait() {
    for (wait, requests) in [(Duration::ZERO, 2), (10 * SECOND, 3)] {
        let (store, keeper) = batching();
        let _held = store.keeper().lock("a").unwrap();
        assert!(keeper.try_lock_for("a", wait).unwrap().is_none());
        assert_eq!(store.count("a", "acquire"), requests);
        assert_eq!(batches(&store), [1, 1]);
    }
}

#[test]
fn set_goes_with_a_batch_only_where_there_is_more_than_one_name() {
    let (store, keeper) = batching();
    drop(keeper.lock_all(["a"]).unwrap());
    store.set(|state| assert_eq!(state.batches_by_keepers, [false]));
    let (store, keeper) = scripted();
    drop(keeper.lock_all(["a", "b"]).unwrap());
    assert_eq!(batches(&store), [0; 0]);
}

/// Makes a thread and two batches of a part hang: no third one is sent.
fn hang(store: &ScriptedStore, keeper: &LockKeeper) -> [Acquiring; 3] {
    store.grants(Grants::Silent);
    ["a", "b", "c"].map(|name| {
        let hanging = spawn_acquire(keeper, name, forever());
        store.wait_for(name, "acquire", 1);
        hanging
    })
}

#[test]
fn attempt_that_was_never_sent_is_not_busy() {
    let (store, keeper) = batching();
    let hanging = hang(&store, &keeper);
    let wait = AcquireOptions::new().wait(SECOND);
    let unsent = spawn_acquire(&keeper, "d", wait);
    eventually("the wait ends", || {
        store.clock.advance(SECOND);
        unsent.is_finished()
    });
    let error = failed(unsent);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(store.count("d", "acquire"), 0);
    store.grants(Grants::Work);
    drop(hanging.map(granted));
}

#[test]
fn cancelled_set_that_was_never_sent_fails_no_attempt_behind_it() {
    let (store, keeper) = batching();
    let hanging = hang(&store, &keeper);
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().cancel(&cancel);
    thread::scope(|scope| {
        let set = scope.spawn(|| keeper.acquire_all(["d", "e"], &options));
        give_time();
        let attempt = spawn_acquire(&keeper, "d", AcquireOptions::new().wait(Duration::ZERO));
        give_time();
        cancel.cancel();
        assert_fails(set.join().unwrap(), ErrorKind::Cancelled);
        store.grants(Grants::Work);
        drop(granted(attempt));
    });
    drop(hanging.map(granted));
}

#[test]
fn nothing_is_abandoned_where_no_reply_was_lost() {
    let (store, keeper) = scripted();
    store.grants(Grants::Unreachable(Duration::ZERO));
    assert_fails(keeper.try_lock("a"), ErrorKind::Unavailable);
    store.grants(Grants::Work);
    drop(keeper.lock("a").unwrap());
    assert_eq!(store.count("a", "abandon"), 0);
}
