//! An estimate of the server's clock.

use std::sync::atomic::{AtomicI64, Ordering};

use lockkeeper_core::HostInstant;

/// An upper bound of how far the server's clock is ahead of the host's, in microseconds.
///
/// No lease depends on it. It only tells the server which requests arrive too late. If the server's
/// clock is set back, some of these are granted after all, and end with their ttl.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(AtomicI64);

impl ServerClock {
    /// Records the server's time `now`, as the reply to a request sent at `asked_at`.
    pub(crate) fn update(&self, now: i64, asked_at: HostInstant) {
        self.0
            .store(now.saturating_sub(micros(asked_at)), Ordering::Relaxed);
    }

    /// Returns the server's time at `instant`, or slightly more.
    pub(crate) fn at(&self, instant: HostInstant) -> i64 {
        let ahead = self.0.load(Ordering::Relaxed);
        micros(instant).saturating_add(ahead)
    }
}

fn micros(instant: HostInstant) -> i64 {
    i64::try_from(instant.as_nanos() / 1_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_never_behind_the_server() {
        let clock = ServerClock::default();
        let instant = |millis: u64| HostInstant::from_nanos(millis * 1_000_000);
        // The server read its clock at some time between the request (10 ms) and the reply (30 ms).
        clock.update(1_000_000, instant(10));
        assert_eq!(clock.at(instant(10)), 1_000_000);
        assert_eq!(clock.at(instant(30)), 1_020_000);
        assert!(clock.at(HostInstant::NEVER) > 1 << 53);
    }
}
