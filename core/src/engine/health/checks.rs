//! When the leases of one part of the store are verified at once, instead of at their next renewal. The backend, or an
//! answer after an outage, gives a reason to doubt them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::HostInstant;
use crate::engine::backoff::random;
use crate::sync::lock;

/// The longest pause before one lease of the part is renewed again while the store does not answer. It
/// bounds how late the loss of all leases is noticed after a server that has lost them answers again.
const MAX_PROBE_PAUSE: Duration = Duration::from_millis(50);

/// The shortest time between two rounds in which all leases are verified.
const MIN_ROUND_GAP: Duration = Duration::from_millis(50);

/// The longest time between two rounds while there is always reason for another one. It bounds how late a loss is
/// noticed then, also with a ttl of minutes.
const MAX_ROUND_GAP: Duration = Duration::from_secs(1);

/// Whether leases may have ended without this process having been told.
#[derive(Default)]
pub(in crate::engine) struct LeaseChecks {
    /// The number of rounds that have begun, in which all leases are verified. An answer to a question
    /// that was asked before the last one proves nothing.
    rounds: AtomicU64,
    pace: Mutex<Pace>,
}

/// When the last round began, and how long the next one waits.
#[derive(Default)]
struct Pace {
    /// Whether the backend has noticed that leases may have ended.
    is_noticed: bool,
    /// Whether the store answers again after a request without an answer.
    is_back: bool,
    began: HostInstant,
    /// Whether renewals of the last round are under way.
    is_under_way: bool,
    /// The number of batches of renewals that are queued or under way.
    renewing: usize,
    /// The shortest time to the next round, for any reason: twice as long as the last one took.
    least_gap: Duration,
    /// The shortest time to the next round because the store answers again. It doubles while there is always such
    /// a reason, so that a store that fails now and then is not asked for all leases all the time.
    outage_gap: Duration,
    /// When one lease asks whether the store answers again.
    probe_at: HostInstant,
}

impl LeaseChecks {
    /// Makes a round due, since the backend has noticed that leases may have ended.
    pub(in crate::engine) fn note_losses(&self) {
        lock(&self.pace).is_noticed = true;
    }

    /// Makes a round due, since the store answers again.
    pub(in crate::engine) fn note_return(&self) {
        lock(&self.pace).is_back = true;
    }

    /// Returns the number of rounds so far, to be compared after an answer.
    pub(in crate::engine) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::SeqCst)
    }

    /// Begins a round if one is due at `now`; `longest_gap` bounds the time between rounds after outages. Returns
    /// when the round begins, which is `now` if it does. `None` if no round is due.
    pub(in crate::engine) fn begin_round(
        &self,
        now: HostInstant,
        longest_gap: Duration,
    ) -> Option<HostInstant> {
        let pace = &mut *lock(&self.pace);
        let gap = match (pace.is_noticed, pace.is_back) {
            (false, false) => return None,
            (true, _) => pace.least_gap,
            (false, true) => pace.least_gap.max(pace.outage_gap),
        };
        let earliest = pace.began + gap;
        if now < earliest {
            return Some(earliest);
        }
        if !pace.is_noticed {
            let is_calm = now >= earliest + pace.outage_gap;
            pace.outage_gap = match is_calm {
                true => MIN_ROUND_GAP,
                false => (2 * pace.outage_gap).min(longest_gap.clamp(MIN_ROUND_GAP, MAX_ROUND_GAP)),
            };
        }
        (pace.is_noticed, pace.is_back) = (false, false);
        (pace.began, pace.is_under_way) = (now, true);
        pace.least_gap = MAX_ROUND_GAP;
        self.rounds.fetch_add(1, Ordering::SeqCst);
        Some(now)
    }

    /// Counts batches of renewals that begin.
    pub(in crate::engine) fn begin_renewals(&self, count: usize) {
        lock(&self.pace).renewing += count;
    }

    /// Counts batches of renewals that have ended by `now`. The last of them ends the round. Returns whether
    /// another round is due.
    pub(in crate::engine) fn end_renewals(&self, count: usize, now: HostInstant) -> bool {
        let pace = &mut *lock(&self.pace);
        pace.renewing -= count;
        if pace.renewing == 0 && std::mem::take(&mut pace.is_under_way) {
            let took = now.saturating_since(pace.began);
            pace.least_gap = (2 * took).clamp(MIN_ROUND_GAP, MAX_ROUND_GAP);
        }
        pace.is_noticed || pace.is_back
    }

    /// Returns how long a lease with this ttl, which got no answer at `now`, waits for its next renewal.
    /// One lease of the keeper asks again soon; the others are verified when it gets an answer. The one that was to
    /// ask may be released by then, or have asked already: so the others wait no longer than rounds do.
    pub(in crate::engine) fn retry_in(&self, now: HostInstant, ttl: Duration) -> Duration {
        let probe_at = &mut lock(&self.pace).probe_at;
        if now < *probe_at {
            return MAX_ROUND_GAP.min(ttl / 12);
        }
        let pause = MAX_PROBE_PAUSE.min(ttl / 12).mul_f64(0.5 + random() / 2.0);
        *probe_at = now + pause;
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_GAP: Duration = Duration::from_secs(50);

    /// Returns the milliseconds between rounds that are due all the time, and that take `took` each.
    fn gaps(checks: &LeaseChecks, reason: fn(&LeaseChecks), took: Duration) -> [u128; 8] {
        let mut now = HostInstant::default() + Duration::from_secs(1);
        std::array::from_fn(|_| {
            reason(checks);
            let begins = checks.begin_round(now, LONGEST_GAP).unwrap();
            let gap = begins.saturating_since(now).as_millis();
            if begins > now {
                assert!(checks.begin_round(begins, LONGEST_GAP) == Some(begins));
            }
            now = begins;
            checks.begin_renewals(2);
            assert!(!checks.end_renewals(1, now));
            assert!(!checks.end_renewals(1, now + took));
            gap
        })
    }

    #[test]
    fn rounds_after_outages_slow_down_to_one_a_second() {
        let checks = LeaseChecks::default();
        let gaps = gaps(&checks, LeaseChecks::note_return, Duration::ZERO);
        assert_eq!(gaps, [0, 50, 100, 200, 400, 800, 1_000, 1_000]);
    }

    #[test]
    fn rounds_for_losses_that_are_noticed_slow_down_only_if_they_take_long() {
        for (took, gap) in [(0, 50), (100, 200), (5_000, 1_000)] {
            let checks = LeaseChecks::default();
            let took = Duration::from_millis(took);
            let gaps = gaps(&checks, LeaseChecks::note_losses, took);
            assert_eq!(gaps, [0, gap, gap, gap, gap, gap, gap, gap]);
        }
    }

    /// A renewal without a reply delays the next round, but not forever.
    #[test]
    fn round_waits_for_the_renewals_of_the_last_one_for_a_second_at_most() {
        let checks = LeaseChecks::default();
        let now = HostInstant::default() + Duration::from_secs(1);
        for begins in [now, now + MAX_ROUND_GAP] {
            checks.note_losses();
            assert!(checks.begin_round(now, LONGEST_GAP) == Some(begins));
            checks.begin_renewals(1);
        }
        assert!(checks.end_renewals(2, now), "the second round is due");
        let earliest = checks.begin_round(now, LONGEST_GAP);
        assert!(earliest == Some(now + MIN_ROUND_GAP));
    }

    #[test]
    fn lease_that_is_not_to_ask_soon_waits_for_a_second_at_most() {
        let (checks, ttl) = (LeaseChecks::default(), Duration::from_secs(600));
        let now = HostInstant::default() + Duration::from_secs(1);
        assert!(checks.retry_in(now, ttl) <= MAX_PROBE_PAUSE);
        assert_eq!(checks.retry_in(now, ttl), MAX_ROUND_GAP);
        assert!(checks.retry_in(now + MAX_PROBE_PAUSE, ttl) <= MAX_PROBE_PAUSE);
    }

    #[test]
    fn lease_that_asks_soon_does_so_at_least_twelve_times_in_its_ttl() {
        let ttl = Duration::from_millis(120);
        let now = HostInstant::default() + Duration::from_secs(1);
        for _ in 0..100 {
            let checks = LeaseChecks::default();
            let pause = checks.retry_in(now, ttl);
            assert!((ttl / 24..=ttl / 12).contains(&pause), "{pause:?}");
            assert_eq!(checks.retry_in(now, ttl), ttl / 12);
        }
    }
}
