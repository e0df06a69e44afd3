//! The server's clock in ticks: an estimate of it, and the epochs that it gives.

use std::sync::atomic::{AtomicI64, Ordering};

use lockkeeper_core::HostInstant;

/// The ticks in a second: 2^21. Scripts count in doubles, which are exact up to 2^53, and ticks since 1970
/// stay below that until 2106.
pub(crate) const TICKS_PER_SECOND: u64 = 1 << 21;
/// The epochs in a tick. All stores count epochs in the unit of MySQL's `UUID_SHORT()`, 2^-24 s, so that
/// tokens keep growing when one store replaces another.
const EPOCHS_PER_TICK: u64 = 8;

/// Returns the epoch of a grant whose script replied, or whose key holds, this many ticks. `None` if no
/// script minted it.
pub(crate) fn epoch(ticks: i64) -> Option<u64> {
    let ticks = u64::try_from(ticks).ok().filter(|ticks| *ticks > 0)?;
    ticks.checked_mul(EPOCHS_PER_TICK)
}

/// An upper bound of how far the server's clock is ahead of the host's, in ticks.
///
/// No lease depends on it. It only tells the server which requests arrive too late. If the server's
/// clock is set back, some of these are granted after all, and end with their ttl.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(AtomicI64);

impl ServerClock {
    /// Records the server's time `now`, as the reply to a request sent at `asked_at`.
    pub(crate) fn update(&self, now: i64, asked_at: HostInstant) {
        self.0
            .store(now.saturating_sub(ticks(asked_at)), Ordering::Relaxed);
    }

    /// Returns the server's time at `instant`, or slightly more.
    pub(crate) fn at(&self, instant: HostInstant) -> i64 {
        let ahead = self.0.load(Ordering::Relaxed);
        ticks(instant).saturating_add(ahead)
    }
}

fn ticks(instant: HostInstant) -> i64 {
    let ticks = u128::from(instant.as_nanos()) * u128::from(TICKS_PER_SECOND) / 1_000_000_000;
    i64::try_from(ticks).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_never_behind_the_server() {
        let clock = ServerClock::default();
        let second = i64::try_from(TICKS_PER_SECOND).unwrap();
        let instant = |seconds: u64| HostInstant::from_nanos(seconds * 1_000_000_000);
        // The server read its clock at some time between the request (10 s) and the reply (30 s).
        clock.update(1_000 * second, instant(10));
        assert_eq!(clock.at(instant(10)), 1_000 * second);
        assert_eq!(clock.at(instant(30)), 1_020 * second);
        assert!(clock.at(HostInstant::NEVER) > 1 << 53);
    }

    #[test]
    fn epochs_have_the_unit_of_uuid_short() {
        let second = i64::try_from(TICKS_PER_SECOND).unwrap();
        assert_eq!(epoch(1_800_000_000 * second), Some(1_800_000_000 << 24));
        assert_eq!(epoch(0), None);
        assert_eq!(epoch(-1), None);
        assert_eq!(epoch(i64::MAX), None);
    }
}
