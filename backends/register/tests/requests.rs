//! How many requests a lock takes.

#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub, dead_code)]

mod map_store;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{LeasePolicy, LockKeeper, SystemClock};
use lockkeeper_register::RegisterProvider;

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
