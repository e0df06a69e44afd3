//! Waiting for something that a test expects.

use std::thread;
use std::time::{Duration, Instant};

/// How long [`until`] waits: far longer than anything that a test waits for takes.
const LIMIT: Duration = Duration::from_secs(30);

/// Waits until `condition` holds, and fails the test if it does not within 30 s.
///
/// # Panics
/// `condition` did not hold in time: `what` is in the message.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "never within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `condition` holds. It is an error if it does not within 30 s.
#[cfg(all(unix, feature = "mysql"))]
pub(crate) fn wait_until(
    mut condition: impl FnMut() -> std::io::Result<bool>,
) -> std::io::Result<()> {
    let began = Instant::now();
    while !condition()? {
        if began.elapsed() > LIMIT {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}
