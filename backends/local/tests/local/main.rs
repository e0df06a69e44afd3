//! The embedded stores through their public interface.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]

#[cfg(feature = "sqlite")]
mod batched;
mod memory;
mod modes;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, ManualClock};

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
