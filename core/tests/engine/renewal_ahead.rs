//! How far ahead of its time a lease is renewed along with another one that is due.

use std::time::Duration;

use lockkeeper_core::{AcquireOptions, LeasePolicy};

use crate::steps::{SECOND, scripted, wait_until_renewed};

/// The least of two bounds counts: a twelfth of the lease's own ttl, and of the keeper's, which is 12 s.
#[test]
fn neither_a_short_nor_a_long_lease_is_renewed_long_before_it_is_due() {
    let (store, keeper) = scripted();
    let of_ttl = |ttl| AcquireOptions::new().lease(LeasePolicy::Renewed { ttl });
    let due = keeper.lock("due").unwrap();
    // It is due 4.75 s behind the beginning, and the other one 4 s behind it.
    let begins = Duration::from_millis(2_750);
    store.clock.advance(begins);
    let _short = keeper.acquire("short", &of_ttl(6 * SECOND)).unwrap();
    store.clock.advance(4 * SECOND - begins);
    store.wait_for("due", "renew", 1);
    wait_until_renewed(&due);
    assert_eq!(store.count("short", "renew"), 0);

    let (store, keeper) = scripted();
    let due = keeper.lock("due").unwrap();
    // It is due after 20 s, and the other one after 16 s.
    let _long = keeper.acquire("long", &of_ttl(60 * SECOND)).unwrap();
    for _ in 0..4 {
        store.next_renewal("due");
        wait_until_renewed(&due);
    }
    assert_eq!(store.count("long", "renew"), 0);
}
