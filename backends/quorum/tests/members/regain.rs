//! Leases that members lose, and regain by a renewal.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Renewal, StoreInfo};

use crate::soon;
use crate::stores::{StoppedClock, Stores};

#[test]
fn renewal_regains_the_members_that_lost_the_lease() {
    let clock = Arc::new(StoppedClock::new());
    let stores = Stores::with_clock(Arc::clone(&clock) as _);
    let mut grant = stores.wait();
    // All members lose the lease, one after the other.
    for member in 0..3 {
        stores.end_at(member);
        // A renewal finds that out, and a later one asks anew.
        let ends = Instant::now() + Duration::from_secs(10);
        loop {
            assert_eq!(stores.renew(&mut grant.lease), Renewal::Renewed);
            if stores.held_at(member).is_some() {
                break;
            }
            assert!(Instant::now() < ends, "member {member} has no lease");
            clock.advance(Duration::from_secs(1));
        }
        // The workers answer this after they have noted the grant.
        stores.held();
    }
    // The operator still sees one hold, and can end it.
    let held = stores.held();
    assert_eq!(held.len(), 1, "{held:?}");
    let admin = stores.quorum.admin().expect("it ends locks");
    let ended = admin.force_release(&held[0], soon());
    assert!(ended.expect("a majority answers"));
    assert_eq!(stores.renew(&mut grant.lease), Renewal::Lost);
    (0..3).for_each(|member| stores.until_free(member));
}

#[test]
fn unlock_that_reaches_the_members_one_after_the_other_is_not_undone() {
    let stores = Stores::with_clock(Arc::new(StoppedClock::new()));
    let mut grant = stores.wait();
    for (member, renewal) in [(0, Renewal::Renewed), (1, Renewal::Lost)] {
        stores.end_at(member);
        assert_eq!(stores.renew(&mut grant.lease), renewal);
        // A worker answers a question before the other jobs of its batch, so the second answer comes after them.
        (0..2).for_each(|_| drop(stores.held()));
    }
}
