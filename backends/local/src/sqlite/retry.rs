//! Retries while another process writes to the database.

use std::time::Duration;

use lockkeeper_core::{CancelToken, Clock, Error, HostInstant};

use super::error::{AttemptError, convert_error};

/// The limit for a brief operation. A write takes some microseconds, but a busy machine may
/// suspend the writer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(250);
/// The limit for an operation after its deadline: an acquisition returns 100 ms after its own at the latest.
const LAST_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(80);
/// The shortest limit for a statement, which takes some microseconds.
const STATEMENT_TIMEOUT: Duration = Duration::from_millis(10);

const FIRST_PAUSE: Duration = Duration::from_micros(20);
/// About as long as a batch of another process: a longer pause misses the gaps between its batches.
const MAX_PAUSE: Duration = Duration::from_micros(250);
const YIELDS: u32 = 4;

/// The retries of one operation while other processes write. The engine's retries are for stores that do
/// not reply; their pauses are a thousand times longer than a write.
#[derive(Clone, Copy)]
pub(super) struct BusyRetry<'a> {
    pub(super) clock: &'a dyn Clock,
    until: HostInstant,
    cancel: Option<&'a CancelToken>,
}

impl<'a> BusyRetry<'a> {
    /// Retries for a short time: a database that is locked for longer is out of reach, and the engine decides
    /// which thread asks again. `deadline` ends the retries earlier, but leaves time for one attempt.
    pub(super) fn brief(clock: &'a dyn Clock, deadline: Option<HostInstant>) -> Self {
        let mut retry = Self::new(clock, deadline.unwrap_or(HostInstant::NEVER));
        retry.until = retry.until.min(clock.now() + ATTEMPT_TIMEOUT);
        retry
    }

    /// Retries until `deadline`, or for a short time if that is over soon. Retries end by a short time after
    /// `deadline`, however many operations use it.
    pub(super) fn new(clock: &'a dyn Clock, deadline: HostInstant) -> Self {
        let last = deadline.min(clock.now()) + LAST_ATTEMPT_TIMEOUT;
        Self::until(clock, deadline.max(last))
    }

    /// Retries until `until` and no longer.
    pub(super) fn until(clock: &'a dyn Clock, until: HostInstant) -> Self {
        Self {
            clock,
            until,
            cancel: None,
        }
    }

    /// Returns how long an attempt that begins now may take.
    pub(super) fn limit(&self) -> Duration {
        let left = self.until.saturating_since(self.clock.now());
        left.max(STATEMENT_TIMEOUT)
    }

    /// Ends the retries when `cancel` is cancelled.
    pub(super) fn cancelled_by(self, cancel: Option<&'a CancelToken>) -> Self {
        Self { cancel, ..self }
    }

    /// Runs `attempt` until it succeeds, fails for good, or the limit is reached.
    pub(super) fn run<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, AttemptError>,
    ) -> Result<T, Error> {
        let mut tries = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(AttemptError::Busy(_)) if self.pause(tries) => tries = tries.saturating_add(1),
                Err(AttemptError::Busy(error)) => return Err(convert_error(error)),
                Err(AttemptError::Failed(error)) => return Err(error),
            }
        }
    }

    /// Pauses before the next attempt. Returns `false` if the limit is reached.
    fn pause(&self, tries: u32) -> bool {
        let left = self.until.saturating_since(self.clock.now());
        if left.is_zero() || self.cancel.is_some_and(CancelToken::is_cancelled) {
            return false;
        }
        if tries < YIELDS {
            std::thread::yield_now();
        } else {
            let pause = FIRST_PAUSE.saturating_mul(1 << (tries - YIELDS).min(10));
            // With jitter, so that writers that collided once do not collide again.
            let pause = pause.min(MAX_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0);
            // Not a wait for a notification: SQLite sends none at the end of a write.
            std::thread::sleep(pause.min(left));
        }
        true
    }
}
