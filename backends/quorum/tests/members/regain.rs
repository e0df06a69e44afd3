//! A lease that a member loses, and regains by a renewal.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Renewal, StoreInfo};

use crate::NEVER;
use crate::stores::{StoppedClock, Stores};

#[test]
fn renewal_regains_the_member_that_lost_the_lease() {
    let clock = Arc::new(StoppedClock::new());
    let stores = Stores::with_clock(Arc::clone(&clock) as _);
    let mut grant = stores.wait();
    stores.end_at(0);
    // A renewal finds that out, and a later one asks anew.
    while stores.held_at(0).is_none() {
        assert_eq!(stores.renew(&mut grant.lease), Renewal::Renewed);
        clock.advance(Duration::from_secs(1));
    }
    // The operator still sees one hold, and can end it.
    let held = stores.held();
    assert_eq!(held.len(), 1, "{held:?}");
    let admin = stores.quorum.admin().expect("it ends locks");
    let ended = admin.force_release(&held[0], NEVER);
    assert!(ended.expect("a majority answers"));
    assert_eq!(stores.renew(&mut grant.lease), Renewal::Lost);
    (0..3).for_each(|member| stores.until_free(member));
}
