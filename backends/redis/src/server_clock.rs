//! What time it is at the server.

use std::sync::atomic::{AtomicI64, Ordering};

use lockkeeper_core::HostInstant;

/// By how much the server's clock is ahead of ours, in microseconds: that much at most when it was
/// learned. It decides about no lease, only about which requests come too late: where the server's
/// clock was set back since, some of those are granted after all, and end with their ttl.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(AtomicI64);

impl ServerClock {
    /// The server said that it is `now` there, after it was asked at `asked_at`.
    pub(crate) fn learn(&self, now: i64, asked_at: HostInstant) {
        self.0
            .store(now.saturating_sub(micros(asked_at)), Ordering::Relaxed);
    }

    /// What it says there at `moment`, or a little more.
    pub(crate) fn at(&self, moment: HostInstant) -> i64 {
        let ahead = self.0.load(Ordering::Relaxed);
        micros(moment).saturating_add(ahead)
    }
}

fn micros(moment: HostInstant) -> i64 {
    i64::try_from(moment.as_nanos() / 1_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_less_than_what_it_is() {
        let clock = ServerClock::default();
        let moment = |millis: u64| HostInstant::from_nanos(millis * 1_000_000);
        // Asked at 10 ms, answered at 30 ms: the server's time was taken somewhere in between.
        clock.learn(1_000_000, moment(10));
        assert_eq!(clock.at(moment(10)), 1_000_000);
        assert_eq!(clock.at(moment(30)), 1_020_000);
        assert!(clock.at(HostInstant::NEVER) > 1 << 53);
    }
}
