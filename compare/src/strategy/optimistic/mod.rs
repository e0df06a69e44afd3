//! No lock at all, but a write that fails when somebody else has written since the read. Nobody
//! waits for anybody; who was too late starts over. That is right, and quick while few want the
//! same thing; the more there are, the more work is done in vain.

pub(crate) mod mysql;
pub(crate) mod redis;
pub(crate) mod sqlite;

use std::time::{Duration, Instant};

use lockkeeper::CancelToken;

use super::transaction::{Job, Moment, Outcome};
use crate::cancel::pause;
use crate::error::Failure;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(40);

/// How an attempt ended.
enum Attempt {
    Written,
    Declined,
    /// Somebody else has written since the read.
    TooLate,
}

/// Attempts it until it comes off or the wait is over. No wait is a single attempt.
fn retry(
    job: &Job<'_>,
    stop: &CancelToken,
    mut attempt: impl FnMut() -> Result<Attempt, Failure>,
) -> Result<Outcome, Failure> {
    let asked = Instant::now();
    loop {
        let begun = asked.elapsed();
        let ended = match attempt()? {
            Attempt::Written => Some(Outcome::Done),
            Attempt::Declined => Some(Outcome::Declined),
            Attempt::TooLate => None,
        };
        if let Some(outcome) = ended {
            // What came before the attempt that counted was in vain.
            (job.at)(Moment::Granted(begun))?;
            (job.at)(Moment::Freed)?;
            return Ok(outcome);
        }
        let left = job.terms.wait.saturating_sub(asked.elapsed());
        if left.is_zero() {
            (job.at)(Moment::Freed)?;
            return Ok(Outcome::Busy);
        }
        pause(stop, PACE.min(left))?;
    }
}
