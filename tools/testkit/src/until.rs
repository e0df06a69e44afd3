//! Waiting for something that a test expects.

use std::thread;
use std::time::{Duration, Instant};

/// How long [`until`] waits: far longer than anything that a test waits for takes.
const LIMIT: Duration = Duration::from_secs(30);

/// The pause before the condition is checked again.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `condition` holds, and fails the test if it does not within 30 s.
///
/// A machine that is too busy to end a pause in time is given as much longer.
///
/// # Panics
/// `condition` did not hold in time: `what` is in the message.
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let holds = holds_in_time(|| Ok::<_, ()>(condition()));
    assert_eq!(holds, Ok(true), "never within {LIMIT:?}: {what}");
}

/// Waits until `condition` holds, as [`until`] does. It is an error if it does not.
pub(crate) fn wait_until(condition: impl FnMut() -> std::io::Result<bool>) -> std::io::Result<()> {
    match holds_in_time(condition)? {
        true => Ok(()),
        false => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

fn holds_in_time<E>(mut condition: impl FnMut() -> Result<bool, E>) -> Result<bool, E> {
    let mut waited = Duration::ZERO;
    while waited < LIMIT {
        let began = Instant::now();
        if condition()? {
            return Ok(true);
        }
        // What a pause takes longer than this is the machine's.
        waited += began.elapsed() + PAUSE;
        thread::sleep(PAUSE);
    }
    Ok(false)
}
