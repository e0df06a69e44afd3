//! The epochs that a provider proposes.
//!
//! Redis has one epoch for all names of a namespace, so a proposal for one name can be too small because of
//! another name. The lead is measured when the answer comes. Measured from the proposal, it would grow with each
//! pair of crossing proposals, and tokens would get far ahead of the clocks.
//!
//! Refused proposers also raise each other's lead by the delay of messages: with members that were slow for
//! seconds, by 13 s in two minutes. Tokens ahead of the clocks would fall back when the members forget them. So the
//! lead shrinks: proposals grow by three quarters of the passed time until the clock has caught up.

use std::time::SystemTime;

use lockkeeper_core::{epoch_at, epochs_in};

/// Chooses epochs that follow the wall clock and are larger than all epochs that the members replied.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The last proposal.
    last: u64,
    /// How far the members' epochs are ahead of this host's wall clock. So if the clock of another proposer
    /// is ahead, only the first proposals are refused.
    ahead: u64,
    /// When the lead was last lowered.
    lowered: Option<SystemTime>,
}

/// The lead shrinks by one part in this number of the time since the last proposal. All proposers do the same,
/// however often they propose, so that crossing proposals are still in the order of time.
const LOWERED: u64 = 4;

impl Epochs {
    /// Returns the next proposal, which is not smaller than `least`.
    pub(crate) fn next(&mut self, now: SystemTime, least: u64) -> u64 {
        let since = self.lowered.replace(now).map(|at| now.duration_since(at));
        let passed = epochs_in(since.and_then(Result::ok).unwrap_or_default());
        self.ahead = self.ahead.saturating_sub(passed / LOWERED);
        let clock = epoch_at(now).saturating_add(self.ahead);
        self.last = whole(clock.max(self.last.saturating_add(1)).max(least));
        self.last
    }

    /// Records that the members refuse all epochs up to `last`.
    pub(crate) fn learn(&mut self, last: u64, now: SystemTime) {
        self.last = self.last.max(last);
        self.ahead = self.ahead.max(last.saturating_sub(epoch_at(now)));
    }
}

/// Returns the next epoch of a whole microsecond, since Redis counts microseconds.
fn whole(epoch: u64) -> u64 {
    let micros = (u128::from(epoch) * 1_000_000).div_ceil(1 << 24);
    u64::try_from((micros << 24) / 1_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn proposals_grow_and_are_ahead_of_what_was_refused() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let mut epochs = Epochs::default();
        assert_eq!(epochs.next(at(10), 0), epoch_at(at(10)));
        assert_eq!(epochs.next(at(9), 0), epoch_at(at(10)) + 16);
        epochs.learn(epoch_at(at(30)), at(10));
        assert_eq!(epochs.next(at(10), 0), epoch_at(at(30)) + 16);
        assert_eq!(epochs.next(at(10), epoch_at(at(36))), epoch_at(at(36)));
    }

    #[test]
    fn lead_over_the_clock_ends_with_time_and_proposals_grow_meanwhile() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let (mut often, mut seldom) = (Epochs::default(), Epochs::default());
        for epochs in [&mut often, &mut seldom] {
            epochs.next(at(10), 0);
            epochs.learn(epoch_at(at(30)), at(10));
        }
        let proposals: Vec<_> = (10..=89).map(|second| often.next(at(second), 0)).collect();
        assert!(proposals.windows(2).all(|pair| pair[0] < pair[1]));
        let half = proposals[40];
        assert_eq!(half, epoch_at(at(60)));
        assert_eq!(seldom.next(at(50), 0), half);
        assert_eq!(often.next(at(90), 0), epoch_at(at(90)));
        assert_eq!(seldom.next(at(1000), 0), epoch_at(at(1000)));
    }
}
