//! Retries after a lost reply, and the errors that they end with.

use std::error::Error as _;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, Released};

use crate::answers::{Grants, Releases};
use crate::reports::outages_of;
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

/// Checks that printing an error and its causes, one after the other, repeats no text.
pub(crate) fn assert_causes_are_shown_once(error: &Error) {
    let (mut shown, mut cause) = (error.to_string(), error.source());
    assert!(cause.is_some(), "{error} has a cause");
    while let Some(error) = cause {
        let text = error.to_string();
        assert!(!shown.contains(&text), "{text:?} twice: {shown:?}");
        shown = format!("{shown}: {text}");
        cause = error.source();
    }
}

#[test]
fn acquisition_is_repeated_under_the_same_owner_after_a_lost_reply() {
    let store = ScriptedStore::new();
    store.grants(Grants::ReplyLost { then_works: true });
    let guard = store.keeper().try_lock("a").unwrap().unwrap();
    assert!(guard.is_held());
    assert_eq!(store.count("a", "acquire"), 2);
    assert_eq!(store.count("a", "abandon"), 0);
}

#[test]
fn unreachable_store_after_a_lost_reply_is_unknown_and_the_grant_is_abandoned() {
    let store = ScriptedStore::new();
    store.grants(Grants::ReplyLost { then_works: false });
    let keeper = store.keeper();
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_causes_are_shown_once(&error);
    assert!(store.count("a", "acquire") > 2);
    store.wait_for("a", "abandon", 1);
    store.grants(Grants::Work);
    // Until that call has returned, an attempt ends with the error of the one before it.
    eventually("the name is given back", || {
        keeper.try_lock("a").is_ok_and(|guard| guard.is_some())
    });
}

/// A busy server takes so long. Nothing of the last request stays behind.
#[test]
fn wait_whose_last_reply_is_pending_ends_as_busy_where_a_holder_was_seen_lately() {
    let (store, keeper) = scripted();
    let waits = [(SECOND, true), (2 * SECOND, false)];
    let all = waits.map(|wait| [false, true].map(|asks| (wait, asks)));
    for ((wait, is_lately), asks) in all.into_iter().flatten() {
        // An acquisition ends so long behind its deadline.
        let span = wait + Duration::from_millis(80);
        store.grants(Grants::LateReply { span, asks });
        let before = store.count("a", "abandon");
        let answer = keeper.try_lock_for("a", wait);
        match answer {
            Ok(guard) => assert!(is_lately && guard.is_none(), "{guard:?}"),
            Err(error) => {
                assert!(!is_lately, "{error}");
                assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
            }
        }
        store.wait_for("a", "abandon", before + 1);
        eventually("the name is given back", || keeper.pending_releases() == 0);
    }
}

#[test]
fn wait_without_time_for_its_last_request_ends_as_busy_where_a_holder_was_seen() {
    let store = ScriptedStore::new();
    let (keeper, told) = outages_of(&store);
    store.grants(Grants::NotSent { sees_holder: true });
    assert!(keeper.try_lock_for("a", 6 * SECOND).unwrap().is_none());
    store.grants(Grants::NotSent { sees_holder: false });
    let error = keeper.try_lock_for("a", 6 * SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.message(), "no time");
    drop(keeper);
    told.expect_nothing();
}

#[test]
fn release_is_repeated_after_a_lost_request() {
    let store = ScriptedStore::new();
    let guard = store.keeper().lock("a").unwrap();
    store.set(|state| state.releases = Releases::RequestLost);
    assert_eq!(guard.release().unwrap(), Released::Done);
    assert_eq!(store.count("a", "release"), 2);
}

#[test]
fn release_that_finds_nothing_after_a_lost_reply_is_unknown() {
    let (store, keeper) = scripted();
    let guard = keeper.lock("a").unwrap();
    store.set(|state| state.releases = Releases::ReplyLost);
    let error = guard.release().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_causes_are_shown_once(&error);
    assert_eq!(store.count("a", "release"), 2);
    assert!(keeper.try_lock("a").unwrap().is_some());
}
