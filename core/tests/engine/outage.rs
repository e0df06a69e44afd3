//! Outages: which acquisitions wait through them, how often the store is asked meanwhile, and the errors.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, CancelToken, Error, ErrorKind, LockGuard, LockKeeper, Outage,
};

use crate::answers::{Grants, Releases};
use crate::events::{Event, observed};
use crate::retry::assert_causes_are_shown_once;
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

const GONE: Grants = Grants::Unreachable(Duration::ZERO);

#[test]
fn wait_gets_the_lock_of_a_store_that_is_back_in_time() {
    // Gone before the request, after it, and during the wait.
    for (grants, is_held) in [
        (GONE, false),
        (Grants::ReplyLost { then_works: false }, false),
        (
            Grants::FailedWait {
                span: SECOND,
                then_works: false,
            },
            true,
        ),
    ] {
        let store = ScriptedStore::new();
        let holder = is_held.then(|| store.keeper().lock("a").unwrap());
        let before = store.count("a", "acquire");
        store.grants(grants);
        let waiting = spawn_acquire(&store.keeper(), "a", forever());
        store.wait_for("a", "acquire", before + 4);
        // On a busy machine it may be lost by now, and a drop would not wait for its release.
        let _ = holder.map(LockGuard::release);
        store.grants(Grants::Work);
        assert!(granted(waiting).is_held());
        assert_eq!(store.count("a", "abandon"), 0);
    }
}

#[test]
fn error_at_the_end_says_for_how_long_the_store_was_gone() {
    for (grants, kind) in [
        (Grants::Unreachable(SECOND), ErrorKind::Unavailable),
        (Grants::ReplyLost { then_works: false }, ErrorKind::Unknown),
    ] {
        let store = ScriptedStore::new();
        store.grants(grants);
        let error = store.keeper().try_lock_for("a", 3 * SECOND).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains("for the last 3.0s"), "{error}");
        let cause = error.source().unwrap().to_string();
        assert_eq!(cause, "no connection");
        assert_causes_are_shown_once(&error);
        assert!(error.is_retryable());
        store.grants(Grants::Work);
        assert!(store.keeper().try_lock("a").unwrap().is_some());
    }
}

#[test]
fn store_that_is_gone_at_the_deadline_is_not_busy() {
    for then_works in [true, false] {
        let store = ScriptedStore::new();
        let _holder = store.keeper().lock("a").unwrap();
        let span = 2 * SECOND;
        store.grants(Grants::FailedWait { span, then_works });
        // The attempt behind the deadline finds out.
        match store.keeper().try_lock_for("a", SECOND) {
            Ok(None) => assert!(then_works),
            Err(error) if error.kind() == ErrorKind::Unavailable => assert!(!then_works),
            answer => panic!("{answer:?}"),
        }
        assert_eq!(store.count("a", "acquire"), 3);
    }
}

#[test]
fn single_attempt_and_outage_fail_return_at_the_first_failure() {
    let fail = |options: AcquireOptions| options.outage(Outage::Fail);
    let span = SECOND;
    for grants in [
        GONE,
        Grants::FailedWait {
            span,
            then_works: false,
        },
    ] {
        let store = ScriptedStore::new();
        let failing = store.builder().outage(Outage::Fail).build().unwrap();
        for (keeper, options) in [
            (store.keeper(), AcquireOptions::new().wait(Duration::ZERO)),
            (store.keeper(), fail(forever())),
            (failing.clone(), forever()),
        ] {
            let before = store.count("a", "acquire");
            store.grants(grants);
            let error = keeper.acquire("a", &options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert_eq!(error.message(), "no connection");
            assert_eq!(store.count("a", "acquire"), before + 1);
        }
        // A lost reply is resolved all the same.
        store.grants(Grants::ReplyLost { then_works: true });
        assert!(failing.acquire("a", &forever()).unwrap().is_some());
        // The acquisition has the last word.
        store.grants(GONE);
        let options = forever().outage(Outage::Wait);
        let waiting = spawn_acquire(&failing, "b", options);
        store.wait_for("b", "acquire", 2);
        store.grants(Grants::Work);
        drop(granted(waiting));
    }
}

#[test]
fn lost_reply_is_not_resolved_for_longer_than_that_of_a_single_attempt() {
    let store = ScriptedStore::new();
    store.grants(Grants::ReplyLost { then_works: false });
    let error = store.keeper().acquire("a", &forever().outage(Outage::Fail));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unknown);
    assert_eq!(store.count("a", "abandon"), 1);
}

/// The store could grant what no caller waits for any more.
#[test]
fn store_is_not_asked_at_the_deadline_after_a_lost_reply() {
    let (store, keeper) = scripted();
    store.grants(Grants::NoReply);
    let acquiring = spawn_acquire(&keeper, "a", AcquireOptions::new());
    store.wait_for("a", "acquire", 1);
    store.grants(Grants::FailedWait {
        span: 60 * SECOND,
        then_works: true,
    });
    assert_eq!(failed(acquiring).kind(), ErrorKind::Unknown);
}

#[test]
fn threads_that_ride_no_outage_out_end_behind_a_head_that_does() {
    let (store, keeper) = scripted();
    store.grants(Grants::Silent);
    let head = spawn_acquire(&keeper, "a", forever());
    store.wait_for("a", "acquire", 1);
    let fail = forever().outage(Outage::Fail);
    let queued = spawn_acquire(&keeper, "a", fail.clone());
    store.grants(GONE);
    store.wait_for("a", "acquire", 3);
    for error in [
        failed(queued),
        keeper.try_lock("a").unwrap_err(),
        keeper.acquire("a", &fail).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    store.grants(Grants::Work);
    drop(granted(head));

    // That head waits for another name's answer.
    let [(prober, ..), (parked, _, name)] = prober_and_parked(&store, &keeper);
    for error in [
        keeper.try_lock(name).unwrap_err(),
        keeper.acquire(name, &fail).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    store.grants(Grants::Work);
    drop((granted(prober), granted(parked)));
}

#[test]
fn one_of_fifty_names_is_requested_at_a_time_while_the_store_is_gone() {
    let (store, keeper) = scripted();
    store.grants(GONE);
    let first = spawn_acquire(&keeper, "first", forever());
    store.wait_for("first", "acquire", 2);
    let begun = Arc::new(AtomicUsize::new(0));
    let others: Vec<_> = (0..49)
        .map(|number| {
            let (keeper, begun) = (keeper.clone(), Arc::clone(&begun));
            thread::spawn(move || {
                begun.fetch_add(1, Ordering::SeqCst);
                keeper.acquire(format!("name {number}"), &forever())
            })
        })
        .collect();
    eventually("all have begun, and some asked", || {
        begun.load(Ordering::SeqCst) == 49 && store.requests() >= 6
    });
    let (mut asked, mut before) = (0, 0);
    store.set(|state| {
        state.grants = Grants::Work;
        asked = state.requests();
        before = state.count("first", "acquire");
    });
    assert!(asked < 25, "{asked} requests to a store that is gone");
    assert!(before < asked, "the names take turns");
    for thread in others.into_iter().chain([first]) {
        drop(granted(thread));
    }
    assert_eq!(store.requests(), asked + 50);
}

#[test]
fn replies_lost_in_a_row_are_an_outage() {
    let (store, keeper) = scripted();
    store.grants(Grants::NoReply);
    let first = spawn_acquire(&keeper, "first", forever());
    store.wait_for("first", "acquire", 3);
    let late = AcquireOptions::new().wait(SECOND);
    let others: Vec<_> = (0..20)
        .map(|number| spawn_acquire(&keeper, &format!("name {number}"), late.clone()))
        .collect();
    let asked = store.requests();
    eventually("some of them ask", || store.requests() > asked + 2);
    eventually("their waits are over", || {
        store.clock.advance(SECOND);
        others.iter().all(Acquiring::is_finished)
    });
    let asked = store.requests();
    assert!(
        asked < 15,
        "{asked} requests to a store that does not reply"
    );
    let parked: Vec<_> = others.into_iter().map(failed).collect();
    // Nothing was granted to those that did not ask.
    let unavailable = |error: &&Error| error.kind() == ErrorKind::Unavailable;
    assert!(parked.iter().filter(unavailable).count() > 10, "{parked:?}");
    store.grants(Grants::Work);
    drop(granted(first));
}

#[test]
fn waiter_that_repeats_its_attempts_follows_the_engine() {
    let (store, keeper) = scripted();
    // Not renewed: an answer to a renewal would end the outage.
    let _held = keeper.acquire("held", &fixed(60 * SECOND)).unwrap();
    store.grants(Grants::Queued);
    let error = keeper.try_lock_for("a", 4 * SECOND).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("for the last 3.0s"), "{error}");
    assert_eq!(error.source().unwrap().to_string(), "no connection");
    let calls = ["acquire", "repeat"].map(|verb| store.count("a", verb));
    assert_eq!(calls, [1, 3]);
    let fail = forever().outage(Outage::Fail);
    let error = keeper.acquire("b", &fail).unwrap_err();
    assert_eq!(error.message(), "no connection");
    assert_eq!(store.count("b", "repeat"), 0);
    let waiting = spawn_acquire(&keeper, "c", forever());
    store.wait_for("c", "repeat", 2);
    store.grants(Grants::Work);
    drop(granted(waiting));
}

#[test]
fn failure_of_one_name_does_not_hold_up_the_others() {
    let (store, keeper) = scripted();
    let cancel = CancelToken::new();
    let broken = spawn_acquire(&keeper, "broken", forever().cancel(&cancel));
    store.wait_for("broken", "acquire", 2);
    drop(keeper.lock("a").unwrap());
    cancel.cancel();
    assert_eq!(failed(broken).kind(), ErrorKind::Cancelled);
}

/// Starts two acquisitions, of which one asks a silent store, and the other waits for what it finds.
#[test]
fn outage_of_one_part_does_not_hold_up_the_names_of_another() {
    const WAITERS: usize = 40;
    const LOCKS: usize = 4;
    let (store, keeper) = batching();
    let cancel = CancelToken::new();
    let waiting: [_; WAITERS] = std::array::from_fn(|number| {
        let options = forever().cancel(&cancel);
        spawn_acquire(&keeper, &format!("far {number} broken"), options)
    });
    let mut requests = 0;
    for _ in 0..LOCKS {
        let before = store.requests();
        eventually("the store is probed", || store.requests() > before + 2);
        let before = store.requests();
        drop(keeper.lock("near").unwrap());
        requests += store.requests() - before;
    }
    // A lock behind those that wait for the other part would have each of them ask before.
    assert!(requests < LOCKS * WAITERS / 2, "{requests}");
    cancel.cancel();
    for waiting in waiting {
        assert_eq!(failed(waiting).kind(), ErrorKind::Cancelled);
    }
}

#[test]
fn waiter_behind_a_release_that_the_store_does_not_answer_is_not_told_of_a_holder() {
    let store = ScriptedStore::new();
    let (keeper, events) = observed(store.builder().handover_max(0));
    let guard = keeper.lock("a").unwrap();
    let waiting = spawn_acquire(&keeper, "a", AcquireOptions::new().wait(8 * SECOND));
    events.expect(Event::Contended);
    store.releases(Releases::Hang);
    drop(guard);
    store.wait_for("a", "release", 2);
    store.clock.advance(9 * SECOND);
    let error = failed(waiting);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    store.releases(Releases::Work);
}

fn prober_and_parked(
    store: &Arc<ScriptedStore>,
    keeper: &LockKeeper,
) -> [(Acquiring, CancelToken, &'static str); 2] {
    store.grants(GONE);
    let mut both = ["one", "two"].map(|name| {
        let cancel = CancelToken::new();
        let acquiring = spawn_acquire(keeper, name, forever().cancel(&cancel));
        store.wait_for(name, "acquire", 1);
        (acquiring, cancel, name)
    });
    let mut before = 0;
    store.set(|state| {
        state.grants = Grants::Silent;
        before = state.count("one", "acquire");
    });
    let asked = store.requests();
    eventually("one of them asks", || store.requests() > asked);
    if store.count("one", "acquire") == before {
        both.reverse();
    }
    both
}

#[test]
fn cancelled_prober_hands_over_to_a_parked_acquisition() {
    let (store, keeper) = scripted();
    let [(prober, cancel, _), (parked, _, name)] = prober_and_parked(&store, &keeper);
    let before = store.count(name, "acquire");
    cancel.cancel();
    // The store notices the cancel.
    store.set(|_| ());
    assert_eq!(failed(prober).kind(), ErrorKind::Cancelled);
    store.wait_for(name, "acquire", before + 1);
    store.grants(Grants::Work);
    drop(granted(parked));
}

#[test]
fn parked_acquisition_keeps_its_deadline_and_its_cancel() {
    let (store, keeper) = scripted();
    let [(prober, ..), (parked, cancel, _)] = prober_and_parked(&store, &keeper);
    let late = spawn_acquire(&keeper, "late", AcquireOptions::new().wait(5 * SECOND));
    eventually("its wait is over", || {
        store.clock.advance(SECOND);
        late.is_finished()
    });
    let error = failed(late);
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains("could not be reached"),
        "{error}"
    );
    assert_eq!(error.source().unwrap().to_string(), "no connection");
    assert_eq!(store.count("late", "acquire"), 0);
    cancel.cancel();
    assert_eq!(failed(parked).kind(), ErrorKind::Cancelled);
    store.grants(Grants::Work);
    drop(granted(prober));
}

#[test]
fn renewal_ends_the_outage() {
    let (store, keeper) = scripted();
    let _held = keeper.lock("held").unwrap();
    let [(prober, ..), (parked, _, name)] = prober_and_parked(&store, &keeper);
    let before = store.count(name, "acquire");
    store.next_renewal("held");
    store.wait_for(name, "acquire", before + 1);
    store.grants(Grants::Work);
    drop((granted(prober), granted(parked)));
}
