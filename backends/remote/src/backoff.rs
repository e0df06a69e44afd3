//! Pauses between retries.

use std::time::Duration;

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
