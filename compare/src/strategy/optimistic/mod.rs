//! No lock at all, but a write that fails if another transaction has written since the read. No
//! thread waits for another one; a thread that was too late starts over. That is right, and quick
//! while few want the same thing. The more there are, the more work is done in vain.

pub(super) mod redis;
pub(super) mod sql;

use std::time::{Duration, Instant};

use super::transaction::{Outcome, Step, Transaction};
use crate::cancel::Cancellation;
use crate::error::Error;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(40);

/// How an attempt ended.
enum Attempt {
    Written,
    Declined,
    /// Another transaction has written since the read.
    TooLate,
}

/// Repeats `attempt` until it succeeds or the wait is over. Without a wait there is one attempt.
fn retry(
    transaction: &Transaction<'_>,
    cancel: &Cancellation,
    mut attempt: impl FnMut() -> Result<Attempt, Error>,
) -> Result<Outcome, Error> {
    let started = Instant::now();
    loop {
        let begun = started.elapsed();
        let outcome = match attempt()? {
            Attempt::Written => Some(Outcome::Done),
            Attempt::Declined => Some(Outcome::Declined),
            Attempt::TooLate => None,
        };
        if let Some(outcome) = outcome {
            // Everything before the last attempt was in vain.
            (transaction.on_step)(Step::Granted(begun))?;
            (transaction.on_step)(Step::Released)?;
            return Ok(outcome);
        }
        let left = transaction.request.wait.saturating_sub(started.elapsed());
        if left.is_zero() {
            (transaction.on_step)(Step::Released)?;
            return Ok(Outcome::Busy);
        }
        cancel.sleep(PACE.min(left))?;
    }
}
