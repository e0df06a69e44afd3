//! Waiting for something that a test expects.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// How long [`until`] waits: far longer than anything that a test waits for takes.
const LIMIT: Duration = Duration::from_secs(120);

/// The shortest and the longest pause before the condition is checked again, which may cost a process or a connection.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(50)];

/// Waits until `condition` holds, and fails the test if it does not within two minutes.
///
/// A machine that is too busy to end a pause in time is given as much longer.
///
/// # Panics
/// `condition` did not hold in time: `what` is in the message.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let holds = wait_until(|| Ok(condition()));
    assert!(holds.is_ok(), "never within {LIMIT:?}: {what}");
}

/// Waits until `condition` holds, as [`until`] does. It is an error if it does not.
pub(crate) fn wait_until(mut condition: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let holds = found_within(LIMIT, || Ok(condition()?.then_some(())))?;
    holds.ok_or_else(|| io::ErrorKind::TimedOut.into())
}

/// Searches until there is something, for as long as `limit`. A machine that is too busy to end a pause in time is given
/// as much longer.
pub(crate) fn found_within<T>(
    limit: Duration,
    mut search: impl FnMut() -> io::Result<Option<T>>,
) -> io::Result<Option<T>> {
    let mut waited = Duration::ZERO;
    while waited < limit {
        let began = Instant::now();
        let found = search()?;
        if found.is_some() {
            return Ok(found);
        }
        let [shortest, longest] = PAUSES;
        let pause = (waited / 16).clamp(shortest, longest);
        // What a pause takes longer than this is the machine's.
        waited += began.elapsed() + pause;
        thread::sleep(pause);
    }
    Ok(None)
}
