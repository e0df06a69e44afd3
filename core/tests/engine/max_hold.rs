//! The longest time for which leases are renewed.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, ErrorKind, LeasePolicy, LockKeeper};

use crate::answers::Renewals;
use crate::events::{Event, observed};
use crate::scripted_store::ScriptedStore;
use crate::steps::*;

/// A keeper that renews for 10 s: twice, after 4 s and 8 s. The ttl is 12 s, less a margin of 1 s.
fn keeper(store: &std::sync::Arc<ScriptedStore>) -> LockKeeper {
    store.builder().max_hold(10 * SECOND).build().unwrap()
}

fn renew_twice(store: &ScriptedStore, remaining: impl Fn() -> Duration) {
    for _ in 0..2 {
        store.next_renewal("a");
        eventually("the deadline should move", || remaining() == 11 * SECOND);
    }
}

#[test]
fn lease_is_lost_when_it_runs_out_after_its_longest_time() {
    let store = ScriptedStore::new();
    let keeper = keeper(&store);
    let guard = keeper.lock("a").unwrap();
    // Another lease, so that there is a renewal after the last one of this lease.
    let options = AcquireOptions::new().max_hold(100 * SECOND);
    let other = keeper.acquire("b", &options).unwrap().unwrap();
    renew_twice(&store, || guard.remaining().min(other.remaining()));
    for _ in 0..2 {
        store.next_renewal("b");
        wait_until_renewed(&other);
    }
    assert_eq!(store.count("a", "renew"), 2);
    assert_eq!(guard.remaining(), 3 * SECOND);
    store.clock.advance(3 * SECOND);
    wait_until_lost(&guard);
    assert!(other.is_held());
}

#[test]
fn renewal_by_hand_begins_the_time_anew() {
    let store = ScriptedStore::new();
    let guard = keeper(&store).lock("a").unwrap();
    renew_twice(&store, || guard.remaining());
    // It is over.
    store.clock.advance(5 * SECOND);
    guard.renew().unwrap();
    assert_eq!(store.count("a", "renew"), 3);
    renew_twice(&store, || guard.remaining());
    assert_eq!(store.count("a", "renew"), 5);
}

#[test]
fn handover_begins_the_time_anew() {
    let store = ScriptedStore::new();
    let builder = store.builder().handover_time(60 * SECOND);
    let (keeper, events) = observed(builder.max_hold(10 * SECOND));
    let first = keeper.lock("a").unwrap();
    renew_twice(&store, || first.remaining());
    let waiting = keeper.clone();
    let waiter = thread::spawn(move || waiting.lock("a").unwrap());
    events.expect(Event::Contended);
    drop(first);
    let second = waiter.join().unwrap();
    assert_eq!(store.count("a", "acquire"), 1);
    renew_twice(&store, || second.remaining());

    // A lease that is not renewed any more goes back to the store.
    store.clock.advance(4 * SECOND);
    let waiting = keeper.clone();
    let waiter = thread::spawn(move || waiting.lock("a").unwrap());
    events.expect(Event::Contended);
    drop(second);
    let third = waiter.join().unwrap();
    assert_eq!(store.count("a", "acquire"), 2);
    renew_twice(&store, || third.remaining());
}

#[test]
fn verification_does_not_prolong_a_lease_beyond_its_time() {
    let store = ScriptedStore::new();
    let guard = keeper(&store).lock("a").unwrap();
    renew_twice(&store, || guard.remaining());
    store.clock.advance(4 * SECOND);
    store.verify();
    store.wait_for("a", "renew", 3);
    store.set(|state| assert_eq!(state.renewal_ttl, 8 * SECOND));
    assert_eq!(guard.remaining(), 7 * SECOND);
    store.renewals("a", Renewals::Lost);
    store.clock.advance(SECOND);
    store.verify();
    wait_until_lost(&guard);
}

#[test]
fn fixed_lease_is_as_long_as_it_is() {
    let store = ScriptedStore::new();
    let options = fixed(60 * SECOND).max_hold(SECOND);
    let guard = keeper(&store).acquire("a", &options).unwrap().unwrap();
    assert_eq!(guard.remaining(), 59 * SECOND);
}

#[test]
fn longest_time_out_of_bounds_is_an_error() {
    let store = ScriptedStore::new();
    for max_hold in [Duration::ZERO, Duration::from_millis(99), Duration::MAX] {
        let options = AcquireOptions::new().max_hold(max_hold);
        let error = keeper(&store).acquire("a", &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        assert!(error.to_string().contains("max_hold"), "{error}");
        assert_fails(
            store.builder().max_hold(max_hold).build(),
            ErrorKind::InvalidValue,
        );
    }
    let lease = LeasePolicy::Renewed { ttl: SECOND };
    assert_eq!(store.builder().lease(lease).build().unwrap().lease(), lease);
    assert_eq!(store.requests(), 0);
}
