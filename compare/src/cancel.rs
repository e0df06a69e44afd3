//! Sleeping that an interruption ends.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::CancelToken;

use crate::error::Failure;

/// A sleeping thread looks up this often, to see whether the run was interrupted.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Sleeps for this long.
///
/// # Errors
/// [`Failure::Interrupted`], at most a tenth of a second late.
pub(crate) fn pause(stop: &CancelToken, how_long: Duration) -> Result<(), Failure> {
    let end = Instant::now() + how_long;
    loop {
        if stop.is_cancelled() {
            return Err(Failure::Interrupted);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(LOOK_UP));
    }
}
