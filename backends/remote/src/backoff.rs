//! Pauses between retries.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{Clock, HostInstant};

/// Pauses that double up to a limit. Each is shortened at random, by up to one half: programs that
/// lost the same server do not come back at the same moment.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    /// Pauses of at most `first`, then of twice that, up to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            next: first,
            longest,
        }
    }

    /// Returns the next pause.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        pause.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

impl Default for Backoff {
    /// The pauses between the retries of one request: from 10 ms to 250 ms.
    fn default() -> Self {
        Self::new(Duration::from_millis(10), Duration::from_millis(250))
    }
}

/// Pauses before a retry of one request; the first retry (`backoff` is `None`) comes at once.
/// Returns false if no time is left, or if the request was cancelled.
pub fn pause_before_retry(
    backoff: &mut Option<Backoff>,
    clock: &dyn Clock,
    deadline: HostInstant,
    is_cancelled: &dyn Fn() -> bool,
) -> bool {
    let left = deadline.saturating_since(clock.now());
    if left.is_zero() || is_cancelled() {
        return false;
    }
    match backoff {
        None => *backoff = Some(Backoff::default()),
        Some(backoff) => thread::sleep(backoff.next_pause().min(left)),
    }
    // One more attempt would only report that it had no time.
    clock.now() < deadline
}
