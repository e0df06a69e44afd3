//! The server's clock in microseconds since 1970: an estimate of it, and the epochs that it gives.

use std::sync::atomic::{AtomicI64, Ordering};

use lockkeeper_core::HostInstant;

/// Returns the epoch of a grant at this time of the server; `None` if no script gives it.
///
/// All stores count epochs in the unit of MySQL's `UUID_SHORT()`, 2^-24 s, so that tokens keep growing
/// when one store replaces another. Each microsecond has an epoch of its own.
pub(crate) fn epoch(micros: i64) -> Option<u64> {
    let micros = u128::try_from(micros).ok().filter(|micros| *micros > 0)?;
    u64::try_from((micros << 24) / 1_000_000).ok()
}

/// Returns the last time in microseconds whose [`epoch`] is not larger than a proposed one: epochs count more finely.
pub(crate) fn micros(epoch: u64) -> u64 {
    let next = ((u128::from(epoch) + 1) * 1_000_000).div_ceil(1 << 24);
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

/// Returns the largest epoch whose [`micros`] are not more than these.
pub(crate) fn last_epoch(micros: i64) -> Option<u64> {
    let next = u128::try_from(micros).ok()? + 1;
    u64::try_from((next << 24) / 1_000_000 - 1).ok()
}

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
            .store(now.saturating_sub(micros_at(asked_at)), Ordering::Relaxed);
    }

    /// Returns the server's time at `instant`, or slightly more.
    pub(crate) fn at(&self, instant: HostInstant) -> i64 {
        let ahead = self.0.load(Ordering::Relaxed);
        micros_at(instant).saturating_add(ahead)
    }
}

fn micros_at(instant: HostInstant) -> i64 {
    i64::try_from(instant.as_nanos() / 1_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_is_never_behind_the_server() {
        let clock = ServerClock::default();
        let second = 1_000_000;
        let instant = |seconds: u64| HostInstant::from_nanos(seconds * 1_000_000_000);
        // The server read its clock at some time between the request (10 s) and the reply (30 s).
        clock.update(1_000 * second, instant(10));
        assert_eq!(clock.at(instant(10)), 1_000 * second);
        assert_eq!(clock.at(instant(30)), 1_020 * second);
        assert!(clock.at(HostInstant::NEVER) > 1 << 53);
    }

    #[test]
    fn proposed_epochs_are_compared_by_microseconds() {
        for time in [1, 7, 1_800_000_000_000_007, 1_800_000_000_999_999] {
            let last = last_epoch(time).unwrap();
            assert_eq!(micros(last), time as u64);
            assert_eq!(micros(last + 1), time as u64 + 1);
            assert!(epoch(time).unwrap() <= last);
            // That of a whole microsecond is kept as it is.
            assert_eq!(micros(epoch(time).unwrap()), time as u64);
        }
        assert_eq!(last_epoch(-2), None);
    }

    #[test]
    fn epochs_have_the_unit_of_uuid_short() {
        let second = 1_000_000;
        assert_eq!(epoch(1_800_000_000 * second), Some(1_800_000_000 << 24));
        assert_eq!(epoch(0), None);
        assert_eq!(epoch(-1), None);
        assert_eq!(epoch(i64::MAX), None);
        // An epoch of an earlier version, which counted 2^21 ticks a second, is not larger.
        for micros in [1_800_000_000_000_007, 1_800_000_000_999_999] {
            let earlier = (micros as f64 * 2.097152) as u64 * 8;
            assert!(epoch(micros - 1).unwrap() < earlier + 8);
            assert!(earlier <= epoch(micros).unwrap());
        }
    }
}
