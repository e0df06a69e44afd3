//! Which attempts go with a batch of the keeper's threads, and which are made once more alone.

use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, ErrorKind};

use crate::answers::Grants;
use crate::scripted_store::ScriptedStore;
use crate::steps::{
    SECOND, assert_fails, batching, eventually, failed, forever, granted, scripted, spawn_acquire,
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
    for ((store, keeper), sent) in [(scripted(), &[][..]), (batching(), &[1])] {
        let guard = keeper.acquire("a", &options).unwrap();
        assert_eq!(batches(&store), sent);
        drop(guard);
    }
}

#[test]
fn attempt_of_a_batch_that_is_busy_is_made_again_alone_where_it_may_wait() {
    for (wait, requests) in [(Duration::ZERO, 2), (10 * SECOND, 3)] {
        let (store, keeper) = batching();
        let _held = store.keeper().lock("a").unwrap();
        let cancel = CancelToken::new();
        let options = AcquireOptions::new().wait(wait).cancel(&cancel);
        assert!(keeper.acquire("a", &options).unwrap().is_none());
        assert_eq!(store.count("a", "acquire"), requests);
        assert_eq!(batches(&store), [1]);
    }
}

#[test]
fn set_goes_with_a_batch_only_where_there_is_more_than_one_name() {
    let (store, keeper) = batching();
    drop(keeper.lock_all(["a"]).unwrap());
    assert_eq!(batches(&store), []);
    let (store, keeper) = scripted();
    drop(keeper.lock_all(["a", "b"]).unwrap());
    assert_eq!(batches(&store), []);
}

/// Two batches of a part hang, and no third one is sent.
#[test]
fn attempt_that_was_never_sent_is_not_busy() {
    let (store, keeper) = batching();
    store.grants(Grants::Silent);
    let hanging = ["a", "b", "c"].map(|name| {
        let hanging = spawn_acquire(&keeper, name, forever());
        store.wait_for(name, "acquire", 1);
        hanging
    });
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
fn nothing_is_abandoned_where_no_reply_was_lost() {
    let (store, keeper) = scripted();
    store.grants(Grants::Unreachable(Duration::ZERO));
    assert_fails(keeper.try_lock("a"), ErrorKind::Unavailable);
    store.grants(Grants::Work);
    drop(keeper.lock("a").unwrap());
    assert_eq!(store.count("a", "abandon"), 0);
}
