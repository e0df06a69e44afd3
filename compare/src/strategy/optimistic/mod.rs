//! No lock at all, but a write that fails if another transaction has written since the read. No
//! thread waits for another one; a thread that was too late starts over. That is right, and quick
//! while few want the same thing. The more there are, the more work is done in vain.

pub(super) mod redis;
pub(super) mod revisions;

use std::time::{Duration, Instant};

use super::transaction::{Outcome, Step, Transaction};
use crate::cancel::Cancellation;
use crate::error::Error;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(40);

/// Repeats `attempt` while it returns `None`, since another transaction has written after the read,
/// until the wait is over.
fn retry(
    transaction: &Transaction<'_>,
    cancel: &Cancellation,
    mut attempt: impl FnMut() -> Result<Option<Outcome>, Error>,
) -> Result<Outcome, Error> {
    let started = Instant::now();
    let timed = |_| {
        // Everything before the last attempt was in vain.
        let in_vain = started.elapsed();
        Ok(attempt()?.map(|outcome| (outcome, in_vain)))
    };
    let outcome = match cancel.retry(transaction.request.wait, || PACE, timed)? {
        Some((outcome, in_vain)) => {
            (transaction.on_step)(Step::Granted(in_vain))?;
            outcome
        }
        None => Outcome::TurnedAway,
    };
    (transaction.on_step)(Step::Released)?;
    Ok(outcome)
}
