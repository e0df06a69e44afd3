//! The embedded stores through their public interface.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

mod memory;
mod modes;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    Clock, ErrorKind, LeasePolicy, LockKeeper, LockProvider, ManualClock, Released,
};

/// Waits until `condition` holds, for much longer than it can take.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a clock that stands still, to move it and to give it to keepers and stores.
fn manual_clock() -> (ManualClock, Arc<dyn Clock>) {
    let clock = ManualClock::new();
    (clock.clone(), Arc::new(clock))
}

/// Tests that a store neither renews an expired lease nor ends the next one with it. The clock of the
/// first keeper stands still, so that its guards ask the store about leases that have expired there.
/// `late_release` is the store's reply if the name was not granted again.
fn expired_lease_is_refused(
    open: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn LockProvider>,
    late_release: Released,
) {
    let (clock, store_clock) = manual_clock();
    let provider = open(Arc::clone(&store_clock));
    let ttl = Duration::from_secs(10);
    let keeper = |clock| {
        LockKeeper::builder(Arc::clone(&provider))
            .clock(clock)
            .lease(LeasePolicy::Fixed { ttl })
            .handover_max(0)
            .build()
            .unwrap()
    };
    let (late, other) = (keeper(manual_clock().1), keeper(store_clock));
    let [first, not_granted_again, granted_again] =
        ["a", "b", "c"].map(|name| late.lock(name).unwrap());
    clock.advance(ttl - Duration::from_nanos(1));
    assert!(other.try_lock("a").unwrap().is_none());
    first.renew().unwrap();
    clock.advance(ttl);
    assert_eq!(first.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(not_granted_again.release().unwrap(), late_release);

    let next = other.lock("c").unwrap();
    assert!(next.token() > granted_again.token());
    assert_eq!(granted_again.release().unwrap(), Released::AlreadyLost);
    next.renew().unwrap();
    assert_eq!(next.release().unwrap(), Released::Done);
}
