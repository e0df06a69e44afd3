//! Leadership and ticks.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, Clock, ErrorKind, LeasePolicy, Outage, Wait};

use crate::answers::{Grants, Renewals};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

/// A pause that only an event ends, on a clock that the test moves.
const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn leader_steps_down_when_its_lock_is_lost_and_leads_again() {
    let store = ScriptedStore::new();
    let (sender, terms) = mpsc::channel();
    let keeper = store.keeper();
    let leading = thread::spawn(move || {
        let mut count = 0;
        keeper.lead("a", |leader| {
            count += 1;
            sender.send(leader.token()).unwrap();
            match leader.pause(LONG) {
                true => ControlFlow::Break(0),
                false if count < 2 => ControlFlow::Continue(()),
                false => ControlFlow::Break(count),
            }
        })
    });
    let first = terms.recv_timeout(LIMIT).unwrap();
    store.renewals("a", Renewals::Lost);
    store.clock.advance(4 * SECOND);
    let second = terms.recv_timeout(LIMIT).unwrap();
    assert!(second > first);
    store.clock.advance(4 * SECOND);
    assert_eq!(leading.join().unwrap().unwrap(), 2);
    eventually("the lock is released", || {
        store.keeper().try_lock("a").unwrap().is_some()
    });
}

#[test]
fn cancel_and_close_end_the_term_and_the_campaign() {
    for leads in [true, false] {
        for closes in [true, false] {
            let store = ScriptedStore::new();
            let other = (!leads).then(|| store.keeper().lock("a").unwrap());
            let (keeper, cancel) = (store.keeper(), CancelToken::new());
            let options = AcquireOptions::new().cancel(&cancel);
            let (sender, terms) = mpsc::channel();
            let leading = {
                let keeper = keeper.clone();
                thread::spawn(move || {
                    keeper.lead_with("a", &options, |leader| {
                        sender.send(()).unwrap();
                        assert!(!leader.pause(LONG));
                        ControlFlow::<()>::Continue(())
                    })
                })
            };
            if leads {
                terms.recv_timeout(LIMIT).unwrap();
            } else {
                store.wait_for("a", "acquire", 2);
            }
            match closes {
                true => keeper.close(),
                false => cancel.cancel(),
            }
            assert_fails(leading.join().unwrap(), ErrorKind::Cancelled);
            drop(other);
        }
    }
}

#[test]
fn campaign_goes_on_after_failures_that_pass_and_ends_with_others() {
    let store = ScriptedStore::new();
    store.grants(Grants::Late(13 * SECOND));
    let ended = store.keeper().lead("a", |_| ControlFlow::Break(()));
    ended.unwrap();
    store.grants(Grants::Unreachable(Duration::ZERO));
    let keeper = store.builder().outage(lockkeeper_core::Outage::Fail);
    let keeper = keeper.build().unwrap();
    let leading = thread::spawn(move || keeper.lead("a", |_| ControlFlow::Break(())));
    let before = store.count("a", "acquire");
    store.wait_for("a", "acquire", before + 3);
    store.grants(Grants::Work);
    leading.join().unwrap().unwrap();
    let refused = store.keeper().lead("", |_| ControlFlow::Break(()));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidName);
}

#[test]
fn tick_is_held_for_its_time_and_run_once() {
    let store = ScriptedStore::new();
    let (keeper, other) = (store.keeper(), store.keeper());
    let (sender, begun) = mpsc::channel();
    let work = move |_: &_| sender.send(()).unwrap();
    let running = thread::spawn(move || keeper.run_tick("a", 3 * SECOND, work));
    begun.recv_timeout(LIMIT).unwrap();
    // A process whose clock is behind.
    let late = || other.run_tick("a", SECOND, |_| ()).unwrap();
    assert_eq!(late(), None);
    store.clock.advance(2 * SECOND);
    assert_eq!(late(), None);
    assert_eq!(store.count("a", "release"), 0);
    store.clock.advance(SECOND);
    assert!(running.join().unwrap().unwrap().is_some());
    assert_eq!(
        other.run_tick("a", Duration::ZERO, |_| ()).unwrap(),
        Some(())
    );
}

#[test]
fn work_that_takes_longer_than_its_time_is_not_followed_by_a_pause() {
    let store = ScriptedStore::new();
    let work = |_: &_| store.clock.advance(2 * SECOND);
    let ran = store.keeper().run_tick("a", SECOND, work).unwrap();
    assert_eq!(ran, Some(()));
}

#[test]
fn tick_is_held_for_its_time_with_a_fixed_lease_and_after_a_panic() {
    let store = ScriptedStore::new();
    let ttl = 6 * SECOND;
    let builder = store.builder().lease(LeasePolicy::Fixed { ttl });
    let keeper = builder.build().unwrap();
    let (sender, begun) = mpsc::channel();
    // Unlike `panic!`, this prints nothing.
    let work = move |_: &_| {
        sender.send(()).unwrap();
        resume_unwind(Box::new("the work fails"))
    };
    let running = thread::spawn(move || keeper.run_tick::<()>("a", LONG, work));
    begun.recv_timeout(LIMIT).unwrap();
    let other = store.keeper();
    for renewals in 1..6 {
        store.clock.advance(2 * SECOND);
        store.wait_for("a", "renew", renewals);
        assert_eq!(other.run_tick("a", SECOND, |_| ()).unwrap(), None);
    }
    store.clock.advance(LONG);
    running.join().unwrap_err();
    eventually("the tick is over", || {
        other.try_lock("a").unwrap().is_some()
    });
}

/// The store is gone before the request, or behind it. Nobody else has the name, or somebody has.
#[test]
fn tick_rides_an_outage_out_under_one_owner() {
    let gone = Grants::Unreachable(Duration::ZERO);
    for (grants, is_held) in [
        (gone, false),
        (gone, true),
        (Grants::ReplyLost { then_works: false }, false),
    ] {
        let store = ScriptedStore::new();
        let holder = is_held.then(|| store.keeper().lock("a").unwrap());
        let before = store.count("a", "acquire");
        store.grants(grants);
        let (keeper, (sender, begun)) = (store.keeper(), mpsc::channel());
        let work = move |_: &_| sender.send(()).unwrap();
        let running = thread::spawn(move || keeper.run_tick("a", 5 * SECOND, work));
        store.wait_for("a", "acquire", before + 3);
        store.grants(Grants::Work);
        if !is_held {
            begun.recv_timeout(LIMIT).unwrap();
            store.clock.advance(5 * SECOND);
        }
        let ran = running.join().unwrap().unwrap();
        assert_eq!(ran.is_some(), !is_held, "{grants:?}");
        assert_eq!(store.count("a", "abandon"), 0);
        drop(holder);
    }
    // Without a wait for outages, and at the end of the time.
    let store = ScriptedStore::new();
    store.grants(gone);
    let fails = store.builder().outage(Outage::Fail).build().unwrap();
    assert_fails(fails.run_tick("a", SECOND, |_| ()), ErrorKind::Unavailable);
    assert_eq!(store.count("a", "acquire"), 1);
    store.grants(Grants::Unreachable(SECOND));
    let ended = store.keeper().run_tick("a", 2 * SECOND, |_| ());
    assert_fails(ended, ErrorKind::Unavailable);
    assert!(store.count("a", "acquire") > 2);
}

/// A short time or wait leaves the store no less time to answer than any single attempt has.
#[test]
fn attempt_of_a_tick_has_the_time_of_a_single_attempt() {
    let store = ScriptedStore::new();
    let single = 2 * SECOND;
    let impatient = store
        .builder()
        .wait(Wait::AtMost(SECOND / 20))
        .build()
        .unwrap();
    for (keeper, at_least) in [
        (store.keeper(), Duration::ZERO),
        (store.keeper(), SECOND / 20),
        (impatient, SECOND),
    ] {
        store.set(|state| state.ends.clear());
        let (clock, began) = (store.clock.clone(), store.clock.now());
        let work = move |_: &_| clock.advance(SECOND);
        assert!(keeper.run_tick("a", at_least, work).unwrap().is_some());
        store.set(|state| assert_eq!(state.ends, [began + single]));
    }
}

#[test]
fn tick_that_max_hold_would_end_is_refused() {
    let store = ScriptedStore::new();
    let keeper = store.builder().max_hold(SECOND).build().unwrap();
    let refused = keeper.run_tick("a", 2 * SECOND, |_| ()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidValue);
    assert_eq!(
        keeper.run_tick("a", Duration::ZERO, |_| ()).unwrap(),
        Some(())
    );
}

/// The other thread asks for both.
#[test]
fn tick_behind_another_thread_goes_on_through_an_outage() {
    let (store, keeper) = scripted();
    store.grants(Grants::Unreachable(Duration::ZERO));
    let locking = spawn_acquire(&keeper, "a", forever());
    eventually("the store is out of reach", || {
        store.clock.advance(SECOND / 10);
        store.count("a", "acquire") > 1
    });
    let ticking = {
        let keeper = keeper.clone();
        thread::spawn(move || keeper.run_tick("a", LONG, |_| ()))
    };
    give_time();
    assert!(!ticking.is_finished());
    store.grants(Grants::Work);
    // Its pauses are of real time, and the tick would end by the test's clock.
    eventually("the other thread has the lock", || locking.is_finished());
    let guard = granted(locking);
    assert_eq!(ticking.join().unwrap().unwrap(), None);
    drop(guard);
}
