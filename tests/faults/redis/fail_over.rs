//! A lock, and contention on one name, while a replica takes over.

use lockkeeper::{LockKeeper, Released};
use lockkeeper_testkit::{RedisServer, Reply, until};

use super::store::{listening, open, start_waiter};
use crate::common::contended::{pass_or_fail, repeat_during};
use crate::common::{WAIT_LIMIT, Witness};

/// A lease on `a` and a waiter outlive their primary, and a call for `other` that meets the outage waits for its end.
/// `replicated` waits until the replicas know of the lease and the waiter. `fail_over` breaks the primary, calls what it is
/// given, and returns the next primary. Nothing of `a` is left there at the end.
pub(crate) fn outlives_its_primary<'s>(
    url: &str,
    other: &str,
    replicated: impl FnOnce(),
    fail_over: impl FnOnce(&dyn Fn()) -> &'s RedisServer,
) {
    // No renewal is due before the limits of the suite.
    let keys = "ttl=10m&response_timeout=5s";
    let keeper = open(url, keys);
    let held = keeper.lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let waiting = start_waiter(url, keys, WAIT_LIMIT, &witness);
    replicated();
    let passer_by = open(url, keys);
    let next = fail_over(&|| {
        let granted = passer_by.try_lock_for(other, WAIT_LIMIT).unwrap();
        drop(granted.expect("the next primary grants it"));
    });
    drop(passer_by);
    until("the lease is renewed there", || held.renew().is_ok());
    assert!(held.is_held());
    until("the holder and the waiter listen there", || {
        listening(next) == 2
    });
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiting.answer().expect("the next primary grants it") > token);
    drop(keeper);
    until("no key is left", || {
        let keys = next.command(&["KEYS", "*"]).unwrap();
        let mut keys = keys.items().iter().filter_map(Reply::text);
        // Those of last epochs stay.
        keys.all(|key| key.ends_with("}:epoch"))
    });
}

/// The keepers lock `a` repeatedly, each with a wait for outages. Meanwhile `fail_over` makes another server take
/// over. Grants go on before and after it.
pub(crate) fn through_fail_over(keepers: &[LockKeeper], fail_over: impl FnOnce()) {
    let witness = &Witness::new(true);
    let work = |keeper| move || pass_or_fail(keeper, witness);
    repeat_during(keepers.iter().map(work), witness, |go_on| {
        go_on();
        fail_over();
        go_on();
    });
}
