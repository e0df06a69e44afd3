//! An estimate of the server's clock, in microseconds since 1970, and the epochs of its times.
//!
//! Only renewals show whether the clock was set. A grant replies with the time of its epoch, which does not
//! decrease after a step back.

use std::time::Duration;

use lockkeeper_core::HostInstant;
use parking_lot::Mutex;

/// Returns the epoch of a grant at this time of the server. `None` for a time that no script returns.
///
/// All stores count epochs in the unit of MySQL's `UUID_SHORT()`, 2^-24 s, so that tokens keep growing
/// when one store replaces another. Each microsecond has a different epoch.
pub(crate) fn epoch(micros: i64) -> Option<u64> {
    let micros = u128::try_from(micros).ok().filter(|micros| *micros > 0)?;
    u64::try_from((micros << 24) / 1_000_000).ok()
}

/// Returns the last time in microseconds whose [`epoch`] is not larger than a proposed one. Epochs have a finer
/// unit.
pub(crate) fn micros(epoch: u64) -> u64 {
    let next = ((u128::from(epoch) + 1) * 1_000_000).div_ceil(1 << 24);
    u64::try_from(next - 1).unwrap_or(u64::MAX)
}

/// Returns the largest epoch whose [`micros`] are not more than these.
pub(crate) fn last_epoch(micros: i64) -> Option<u64> {
    let next = u128::try_from(micros).ok()? + 1;
    u64::try_from((next << 24) / 1_000_000 - 1).ok()
}

/// The server's clock relative to this host's clock, in microseconds.
///
/// By it, requests tell the server until when they may be granted. If the server's clock is set back, some late
/// requests are granted nevertheless, and end with their ttl.
///
/// The server ends leases by its clock. If the clock is set forward, leases end before their holders expect
/// that.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// How far the server's clock is ahead of the host's at most, by the last reply.
    most_ahead: i64,
    /// The bounds of how far it is ahead, by the last reply with the time itself.
    ahead: Option<(i64, i64)>,
    /// The time of the first such reply since the last step, and the middle of its bounds.
    first: Option<(HostInstant, i64)>,
    /// How far the clock was set the last time.
    step: Option<i64>,
}

/// What the replies showed of the server's clock.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// How far the clock was set the last time, in microseconds: below zero if back.
    pub(crate) step: Option<i64>,
    /// How many microseconds it has gained since then, and the host's time for that.
    pub(crate) drift: Option<(i64, Duration)>,
}

/// The difference between two replies from which the server's clock counts as set, in microseconds.
pub(crate) const STEP: i64 = 250_000;

impl ServerClock {
    /// Records the server's time `now`, or a later one, as the reply to a request sent at `asked_at`.
    pub(crate) fn update(&self, now: i64, asked_at: HostInstant) {
        self.0.lock().most_ahead = now.saturating_sub(micros_at(asked_at));
    }

    /// Records the server's time `now`, as the reply to a request sent at `asked_at` that came at `replied_at`. Returns
    /// whether the server's clock was set since the last such reply.
    pub(crate) fn note(&self, now: i64, asked_at: HostInstant, replied_at: HostInstant) -> bool {
        let [least, most] = [replied_at, asked_at].map(|at| now.saturating_sub(micros_at(at)));
        let middle = least.midpoint(most);
        let mut state = self.0.lock();
        state.most_ahead = most;
        let step = match state.ahead.replace((least, most)) {
            Some((_, most_before)) if least > most_before.saturating_add(STEP) => {
                Some(least.saturating_sub(most_before))
            }
            Some((least_before, _)) if most < least_before.saturating_sub(STEP) => {
                Some(most.saturating_sub(least_before))
            }
            _ => None,
        };
        if step.is_some() {
            state.step = step;
        }
        if step.is_some() || state.first.is_none() {
            state.first = Some((replied_at, middle));
        }
        step.is_some()
    }

    /// Returns the server's time at `instant`, or slightly more.
    pub(crate) fn at(&self, instant: HostInstant) -> i64 {
        let ahead = self.0.lock().most_ahead;
        micros_at(instant).saturating_add(ahead)
    }

    /// Returns what the replies showed of the clock until `now`.
    pub(crate) fn seen(&self, now: HostInstant) -> Seen {
        let state = self.0.lock();
        let drift = state.first.zip(state.ahead);
        let drift = drift.map(|((since, first), (least, most))| {
            let gained = least.midpoint(most).saturating_sub(first);
            (gained, now.saturating_since(since))
        });
        Seen {
            step: state.step,
            drift,
        }
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
    fn step_is_told_from_slow_replies() {
        let clock = ServerClock::default();
        let instant = |millis: u64| HostInstant::from_nanos(millis * 1_000_000);
        let millis = |millis: i64| millis * 1_000;
        assert!(!clock.note(millis(5_000), instant(0), instant(10)));
        // The reply took 20 s: the clock may have been read at any time in between.
        assert!(!clock.note(millis(25_000), instant(20), instant(20_020)));
        assert!(!clock.note(millis(26_000), instant(20_990), instant(21_010)));
        assert_eq!(clock.seen(instant(30_000)).step, None);
        // Set forward by a minute, and back.
        assert!(clock.note(millis(87_000), instant(22_000), instant(22_010)));
        let step = clock.seen(instant(30_000)).step.unwrap();
        assert!((millis(59_900)..=millis(60_000)).contains(&step), "{step}");
        assert!(!clock.note(millis(88_000), instant(23_000), instant(23_010)));
        assert!(clock.note(millis(29_000), instant(24_000), instant(24_010)));
        assert!(clock.seen(instant(30_000)).step.unwrap() < millis(-59_900));
        // It gains 10 ms a second, which is no step.
        for second in 1..=100 {
            let at = 24_000 + second * 1_000;
            let ahead = 5_000 + i64::try_from(second).unwrap() * 10;
            let now = millis(i64::try_from(at).unwrap() + ahead);
            assert!(!clock.note(now, instant(at), instant(at + 10)));
        }
        let (gained, span) = clock.seen(instant(124_010)).drift.unwrap();
        assert_eq!((gained, span.as_secs()), (millis(1_000), 100));
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
    }
}
