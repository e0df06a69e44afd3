//! The pauses of a thread before it asks the store again.

use std::time::Duration;

use crossbeam_utils::sync::Parker;

use crate::cancel::{CancelRegistration, CancelToken};
use crate::clock::{Clock, HostInstant};

/// The back-off before the second retry; it doubles with every further one. The first retry follows
/// at once: most lost replies are a connection that the server or the network has closed.
const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const MAX_BACKOFF: Duration = Duration::from_millis(250);

/// Returns the pause before the next attempt after this many retries.
pub(super) fn backoff(retries: u32) -> Duration {
    let Some(doublings) = retries.checked_sub(1) else {
        return Duration::ZERO;
    };
    let longest = FIRST_BACKOFF.saturating_mul(1 << doublings.min(10));
    longest.min(MAX_BACKOFF).mul_f64(0.5 + random() / 2.0)
}

/// Returns a number from 0 to 1: threads and processes that lost the same server do not come back
/// together.
pub(super) fn random() -> f64 {
    f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX)
}

/// What ends the retries of an operation.
#[derive(Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) clock: &'a dyn Clock,
    pub(super) until: HostInstant,
    pub(super) cancel: Option<&'a CancelToken>,
}

impl Limits<'_> {
    pub(super) fn left(&self) -> Duration {
        self.until.saturating_since(self.clock.now())
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_some_and(CancelToken::is_cancelled)
    }

    /// Registers a cancel that unparks the thread of `parker`, until the result is dropped.
    pub(super) fn unpark_on_cancel(&self, parker: &Parker) -> Option<CancelRegistration> {
        let unparker = parker.unparker().clone();
        self.cancel
            .map(|it| it.on_cancel(move || unparker.unpark()))
    }

    /// Pauses for `time`, or until a cancel.
    pub(super) fn pause(&self, time: Duration) {
        // Not `thread::park`, which would take an `unpark` that the caller's program waits for.
        let parker = Parker::new();
        let _wake = self.unpark_on_cancel(&parker);
        if !self.is_cancelled() {
            parker.park_timeout(time.min(self.left()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_its_bound_and_half_of_it_is_random() {
        assert_eq!(backoff(0), Duration::ZERO);
        for (retries, longest) in [(1, 10), (2, 20), (3, 40), (6, 250), (u32::MAX, 250)] {
            let longest = Duration::from_millis(longest);
            let pauses = [(); 100].map(|()| backoff(retries));
            assert!(pauses.iter().all(|it| (longest / 2..=longest).contains(it)));
            // Both halves of the range are drawn: that one is not happens once in 2^99 times.
            let middle = longest / 4 * 3;
            assert!(pauses.iter().any(|it| *it < middle));
            assert!(pauses.iter().any(|it| *it > middle));
        }
    }
}
