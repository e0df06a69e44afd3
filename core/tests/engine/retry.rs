//! Retries after a lost reply.

use std::time::Duration;

use lockkeeper_core::{ErrorKind, Released};

use crate::script::{Grants, Releases, Script};

#[test]
fn acquisition_is_repeated_under_the_same_owner_after_a_lost_reply() {
    let store = Script::new();
    store.set(|state| state.grants = Grants::ReplyLost { then_works: true });
    let guard = store.keeper().try_lock("a").unwrap().unwrap();
    assert!(guard.is_held());
    assert_eq!(store.count("a", "acquire"), 2);
    assert_eq!(store.count("a", "abandon"), 0);
}

#[test]
fn unreachable_store_after_a_lost_reply_is_unknown_and_the_grant_is_abandoned() {
    let store = Script::new();
    store.set(|state| state.grants = Grants::ReplyLost { then_works: false });
    let keeper = store.keeper();
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert!(store.count("a", "acquire") > 2);
    assert_eq!(store.count("a", "abandon"), 1);
    store.set(|state| state.grants = Grants::Work);
    assert!(keeper.try_lock("a").unwrap().is_some());
}

#[test]
fn unreachable_store_fails_the_first_attempt_at_once() {
    let store = Script::new();
    store.set(|state| state.grants = Grants::Gone);
    let error = store.keeper().lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(store.count("a", "acquire"), 1);
    assert_eq!(store.count("a", "abandon"), 0);
}

#[test]
fn wait_that_fails_behind_its_deadline_asks_once_more_whether_the_name_is_busy() {
    let store = Script::new();
    let other = store.keeper();
    let _holder = other.lock("a").unwrap();
    let wait = Duration::from_secs(1);
    store.set(|state| state.grants = Grants::FailedWait(2 * wait));
    assert!(store.keeper().try_lock_for("a", wait).unwrap().is_none());
    assert_eq!(store.count("a", "acquire"), 3);
}

#[test]
fn release_is_repeated_after_a_lost_request() {
    let store = Script::new();
    let keeper = store.keeper();
    let guard = keeper.lock("a").unwrap();
    store.set(|state| state.releases = Releases::RequestLost);
    assert_eq!(guard.release().unwrap(), Released::Done);
    assert_eq!(store.count("a", "release"), 2);
}

#[test]
fn release_that_finds_nothing_after_a_lost_reply_is_unknown() {
    let store = Script::new();
    let keeper = store.keeper();
    let guard = keeper.lock("a").unwrap();
    store.set(|state| state.releases = Releases::ReplyLost);
    assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(store.count("a", "release"), 2);
    assert!(keeper.try_lock("a").unwrap().is_some());
}
