//! How many requests a lock takes.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, dead_code)]

mod map_store;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock as _, LeasePolicy, LockKeeper, LockName, Mode, SystemClock};
use lockkeeper_register::{Call, Key, RegisterProvider, RegisterStore as _, Write};

use map_store::{Faults, Map, MapStore};

/// On a busy machine, a session has to be kept again between two requests. So the least of several counts.
#[test]
fn free_name_takes_three_requests_and_a_known_one_two() {
    let map = Arc::new(Map::new(false, Faults::default()));
    let store = MapStore::new(&map, "requests");
    let provider = RegisterProvider::new(store, Arc::new(SystemClock)).unwrap();
    let ttl = Duration::from_secs(600);
    let builder = LockKeeper::builder(Arc::new(provider));
    let keeper = builder.lease(LeasePolicy::Renewed { ttl }).build().unwrap();
    let pair = |name: &str| {
        let before = map.calls();
        keeper.lock(name).unwrap().release().unwrap();
        map.calls() - before
    };
    pair("first");
    let least = |name: fn(u32) -> String| (0..50).map(|round| pair(&name(round))).min();
    assert_eq!(least(|round| format!("{round}")), Some(3));
    assert_eq!(least(|_| "known".to_owned()), Some(2));
    let guards: Vec<_> = (0..50)
        .map(|_| keeper.semaphore("s", 50).unwrap().acquire())
        .collect();
    let renew = |guard: &lockkeeper_core::Permit| {
        let before = map.calls();
        guard.renew().unwrap();
        map.calls() - before
    };
    let renewals = guards.iter().map(|guard| renew(guard.as_ref().unwrap()));
    assert_eq!(renewals.min(), Some(1));
}

/// Returns a keeper behind so many holders and waiters of the lock `a`, which never look at it. Their sessions live.
fn keeper_behind(holders: usize, waiters: usize) -> (Arc<Map>, LockKeeper) {
    let map = Arc::new(Map::new(false, Faults::default()));
    let store = MapStore::new(&map, "requests");
    let ttl = Duration::from_secs(600);
    let call = Call::until(SystemClock.now() + ttl);
    let session = || store.open_session(ttl, call).unwrap();
    let lease = |_| {
        let session = session();
        format!(r#"{{"o":"h-1","e":1,"m":"x","s":"{session}","h":"","i":1,"a":1}}"#)
    };
    let waiter = |at| format!(r#"{{"o":"w-{at}","m":"x","s":"{}"}}"#, session());
    let leases: Vec<_> = (0..holders).map(lease).collect();
    let waiters: Vec<_> = (0..waiters).map(waiter).collect();
    let (leases, waiters) = (leases.join(","), waiters.join(","));
    let text = format!(r#"{{"v":1,"k":"lock/a","e":1,"l":[{leases}],"q":[{waiters}]}}"#);
    let write = Write {
        key: &Key::of(&LockName::new("a").unwrap(), Mode::Exclusive),
        seen: None,
        session: None,
        also: None,
        value: Some(&text),
    };
    store.write(&[write], call).unwrap();
    let provider = RegisterProvider::new(store, Arc::new(SystemClock)).unwrap();
    (
        map,
        LockKeeper::builder(Arc::new(provider)).build().unwrap(),
    )
}

#[test]
fn waiter_checks_the_holder_and_the_first_waiter_alone() {
    let (map, keeper) = keeper_behind(1, 20);
    let wait = Duration::from_millis(300);
    assert!(keeper.try_lock_for("a", wait).unwrap().is_none());
    assert_eq!(map.most_checked(), 2);
}

/// An attempt that does not wait has no session for a place in the queue.
#[test]
fn attempts_without_a_wait_skip_dead_waiters() {
    let (map, keeper) = keeper_behind(0, 2);
    let end = SystemClock.now() + Duration::from_secs(60);
    while keeper.try_lock("a").unwrap().is_none() {
        assert!(SystemClock.now() < end, "{:?}", map.held());
    }
}
