//! Several names, all or none.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, CancelToken, Error, ErrorKind, LeasePolicy, Mode, Outage, Released, Wait,
    WaitOutcome,
};

use crate::answers::{Grants, Releases, Renewals};
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

#[test]
fn free_names_are_locked_in_one_batch_in_order_and_once() {
    let (store, keeper) = batching();
    let guards = keeper.lock_all(["c", "a", "b", "a"]).unwrap();
    let names: Vec<_> = guards.tokens().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(
        guards.token("b").unwrap(),
        guards.tokens().nth(1).unwrap().1
    );
    assert_eq!(guards.token("d"), None);
    store.set(|state| assert_eq!(state.batches, [3]));
    assert!(keeper.try_lock("b").unwrap().is_none());
    guards.ensure_held().unwrap();
    guards.renew().unwrap();
    assert_eq!(guards.release().unwrap(), Released::Done);
    assert!(keeper.try_lock_all(["a", "b", "c"]).unwrap().is_some());
}

#[test]
fn each_name_of_a_set_can_have_a_mode_of_its_own() {
    for keeper in [batching().1, ScriptedStore::new().keeper()] {
        let (shared, exclusive) = (Mode::Shared, Mode::Exclusive);
        let set = [("seat", exclusive), ("hall", shared), ("seat", shared)];
        let guards = keeper.lock_all(set).unwrap();
        let modes = guards.guards().iter();
        let modes: Vec<_> = modes.map(|it| (it.name().as_str(), it.mode())).collect();
        assert_eq!(modes, [("hall", shared), ("seat", exclusive)]);
        assert!(keeper.try_lock_shared("hall").unwrap().is_some());
        assert!(keeper.try_lock_shared("seat").unwrap().is_none());
        let error = keeper.try_lock_all([("a", Mode::Permit { limit: 0 })]);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidLimit);
        drop(guards);
        let soon = std::time::Instant::now() + SECOND;
        assert!(keeper.try_lock_all_until(["hall"], soon).unwrap().is_some());
    }
}

#[test]
fn released_or_dropped_set_goes_back_in_one_batch() {
    let (store, keeper) = batching();
    let guards = keeper.lock_all(["a", "b", "c"]).unwrap();
    assert_eq!(guards.release().unwrap(), Released::Done);
    store.set(|state| assert_eq!(state.batches, [3, 3]));
    drop(keeper.lock_all(["a", "b", "c"]).unwrap());
    for name in ["a", "b", "c"] {
        store.wait_for(name, "release", 2);
    }
    store.set(|state| assert_eq!(state.batches, [3, 3, 3, 3]));
    for name in ["a", "b", "c"] {
        assert_eq!(store.count(name, "release"), 2, "{name}");
    }
}

#[test]
fn released_set_goes_to_waiters_of_the_process_and_else_to_the_store() {
    let store = ScriptedStore::with_batches();
    let (keeper, events) = observed(store.builder());
    let guards = keeper.lock_all(["a", "b", "c"]).unwrap();
    let token = guards.token("b").unwrap().get();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| keeper.lock("b").unwrap());
        events.expect(Event::Contended);
        assert_eq!(guards.release().unwrap(), Released::Done);
        let guard = waiter.join().unwrap();
        assert_eq!(guard.token().get(), token + 1);
        store.set(|state| assert_eq!(state.batches, [3, 2]));
    });
    assert_eq!(store.count("b", "acquire"), 1);
}

#[test]
fn lost_reply_to_the_release_of_a_set_concerns_one_name() {
    let (store, keeper) = batching();
    for (how, is_known) in [(Releases::RequestLost, true), (Releases::ReplyLost, false)] {
        let guards = keeper.lock_all(["a", "b", "c"]).unwrap();
        store.releases(how);
        match guards.release() {
            Ok(found) => assert!(is_known && found == Released::Done),
            Err(error) => {
                assert!(!is_known, "{error}");
                assert_eq!(error.kind(), ErrorKind::Unknown);
            }
        }
    }
    let releases = ["a", "b", "c"].map(|name| store.count(name, "release"));
    assert_eq!(releases.iter().sum::<usize>(), 3 + 1 + 3 + 1);
    assert!(keeper.try_lock_all(["a", "b", "c"]).unwrap().is_some());
}

#[test]
fn wait_for_later_names_takes_what_is_left_of_the_one_wait() {
    for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
        let (keeper, events) = observed(store.builder());
        let [a, _b] = ["a", "b"].map(|name| keeper.lock(name).unwrap());
        let waiting = thread::spawn(move || keeper.try_lock_all_for(["a", "b"], 10 * SECOND));
        events.expect(Event::Contended);
        store.clock.advance(6 * SECOND);
        drop(a);
        events.expect(Event::Contended);
        store.clock.advance(4 * SECOND);
        eventually("the wait ends", || waiting.is_finished());
        assert!(waiting.join().unwrap().unwrap().is_none());
    }
}

#[test]
fn batch_without_a_reply_takes_no_second_wait() {
    let (store, keeper) = batching();
    store.grants(Grants::Silent);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_all_for(["a", "b"], 3 * SECOND));
        store.wait_for("a", "acquire", 1);
        store.clock.advance(4 * SECOND);
        let ended = waiting.join().unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Unknown);
        assert_eq!(store.count("a", "acquire"), 1);
        store.grants(Grants::Work);
    });
}

#[test]
fn one_name_that_is_held_leaves_none_locked() {
    for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
        let (keeper, other) = (store.keeper(), store.keeper());
        let held = other.lock("b").unwrap();
        assert!(keeper.try_lock_all(["a", "b", "c"]).unwrap().is_none());
        for name in ["a", "c"] {
            eventually("it was given back", || {
                other.try_lock(name).unwrap().is_some()
            });
        }
        drop(held);
        let wait = Duration::from_secs(5);
        assert!(
            keeper
                .try_lock_all_for(["a", "b", "c"], wait)
                .unwrap()
                .is_some()
        );
    }
}

#[test]
fn single_attempt_asks_once_for_each_name() {
    let store = ScriptedStore::with_batches();
    let (keeper, other) = (store.keeper(), store.keeper());
    let held = other.lock("b").unwrap();
    assert!(keeper.try_lock_all(["a", "b"]).unwrap().is_none());
    assert_eq!(store.count("b", "acquire"), 2, "one by each keeper");
    drop(held);

    store.grants(Grants::Unreachable(Duration::ZERO));
    let error = keeper.try_lock_all(["c", "d"]).unwrap_err();
    assert_eq!(
        (error.kind(), error.name()),
        (ErrorKind::Unavailable, Some("c"))
    );
    assert_eq!(store.count("c", "acquire"), 1);
}

#[test]
fn batch_that_finds_the_store_gone_has_leases_verified() {
    let store = ScriptedStore::with_batches();
    let keeper = store.builder().outage(Outage::Fail).build().unwrap();
    let held = keeper.lock("held").unwrap();
    store.grants(Grants::Unreachable(Duration::ZERO));
    assert_fails(keeper.lock_all(["a", "b"]), ErrorKind::Unavailable);
    assert_eq!(
        store.count("a", "acquire"),
        1,
        "it returns at the first failure"
    );
    store.grants(Grants::Work);
    drop(keeper.lock("a").unwrap());
    store.wait_for("held", "renew", 1);
    assert!(held.is_held());
}

#[test]
fn threads_with_overlapping_sets_do_not_wait_for_each_other_in_a_circle() {
    for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
        let keeper = store.builder().wait(Wait::Forever).build().unwrap();
        let sets = [["a", "b"], ["b", "c"], ["c", "a"]];
        thread::scope(|scope| {
            for set in sets {
                let keeper = &keeper;
                scope.spawn(move || {
                    for _ in 0..50 {
                        drop(keeper.lock_all(set).unwrap());
                    }
                });
            }
        });
    }
}

#[test]
fn loss_of_one_name_is_the_loss_of_all() {
    let (store, keeper) = batching();
    let guards = keeper.lock_all(["a", "b"]).unwrap();
    let signal = guards.lost_signal();
    assert_eq!(signal.wait(Duration::ZERO), WaitOutcome::TimedOut);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| signal.wait(60 * SECOND));
        let (tell, told) = std::sync::mpsc::channel();
        signal.on_lost(move || tell.send(()).unwrap());
        store.renewals("b", Renewals::Lost);
        store.next_renewal("b");
        assert_eq!(waiting.join().unwrap(), WaitOutcome::Lost);
        told.recv().unwrap();
        assert!(told.recv().is_err(), "it is called once");
    });
    assert!(!guards.is_held());
    assert!(guards.remaining().is_zero());
    let error = guards.ensure_held().unwrap_err();
    assert_eq!((error.kind(), error.name()), (ErrorKind::Lost, Some("b")));
    assert_eq!(guards.release().unwrap(), Released::AlreadyLost);
}

#[test]
fn signal_of_a_set_that_was_released_ends_a_wait() {
    let (_store, keeper) = scripted();
    let guards = keeper.lock_all(["a", "b"]).unwrap();
    let signal = guards.lost_signal();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| signal.wait(60 * SECOND));
        give_time();
        drop(guards);
        assert_eq!(waiting.join().unwrap(), WaitOutcome::Released);
    });
}

#[test]
fn reply_that_is_lost_costs_no_name_its_ttl() {
    let (store, keeper) = batching();
    store.grants(Grants::ReplyLost { then_works: true });
    drop(keeper.lock_all(["a", "b"]).unwrap());
    assert_eq!(store.count("a", "abandon"), 1);
    drop(keeper.lock_all(["a", "b"]).unwrap());
}

#[test]
fn cancel_ends_the_wait_for_the_second_name_and_gives_the_first_back() {
    let store = ScriptedStore::with_batches();
    let (keeper, events) = observed(store.builder());
    let other = store.keeper();
    let held = keeper.lock("b").unwrap();
    let cancel = CancelToken::new();
    let options = forever().cancel(&cancel);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.acquire_all(["a", "b"], &options));
        events.expect(Event::Contended);
        assert!(other.try_lock("a").unwrap().is_none());
        cancel.cancel();
        assert_fails(waiting.join().unwrap(), ErrorKind::Cancelled);
    });
    drop(held);
    eventually("all is released", || keeper.pending_releases() == 0);
    assert!(other.try_lock_all(["a", "b"]).unwrap().is_some());
    let error = keeper.lock_all([""; 0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidName);
}

#[test]
fn grant_of_a_set_that_comes_too_late_is_not_busy() {
    let (store, keeper) = batching();
    store.grants(Grants::Late(60 * SECOND));
    store.renewals("a", Renewals::Lost);
    assert_fails(keeper.try_lock_all(["a", "b"]), ErrorKind::Unavailable);
}

#[test]
fn errors_of_a_set_name_the_lock_and_the_store() {
    for store in [ScriptedStore::new(), ScriptedStore::with_batches()] {
        let (keeper, other) = (store.keeper(), store.keeper());
        let _held = other.lock("b").unwrap();
        let where_of = |error: &Error| (error.name().map(str::to_owned), error.backend());
        let on = |name: &str| (Some(name.to_owned()), Some("scripted"));
        let timed_out = store.builder().wait(Wait::AtMost(Duration::ZERO));
        let error = timed_out.build().unwrap().lock_all(["a", "b", "c"]);
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert_eq!(where_of(&error), on("b"), "{error}");

        let ttl = Duration::ZERO;
        let options = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
        let error = keeper.acquire_all(["a", "c"], &options).unwrap_err();
        assert_eq!(where_of(&error), (None, Some("scripted")));
        let text = error.to_string();
        assert!(
            text.ends_with(", for the locks \"a\", \"c\" (scripted)"),
            "{text}"
        );
        let error = keeper.acquire_all(["c", "c"], &options).unwrap_err();
        assert_eq!(where_of(&error), on("c"), "{error}");
        let many = (0..10).map(|number| number.to_string());
        let error = keeper.acquire_all(many, &options).unwrap_err();
        assert!(error.message().ends_with("\"7\" and 2 more"), "{error}");

        // The confirmation of a late grant fails.
        store.grants(Grants::Late(60 * SECOND));
        store.renewals("d", Renewals::Fail);
        let error = keeper.try_lock_all(["d", "e"]).unwrap_err();
        assert_eq!(where_of(&error), on("d"), "{error}");
    }
}
