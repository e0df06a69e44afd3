//! The epochs that a provider proposes.
//!
//! Redis counts the epochs of a namespace together, so a proposal for one name can be too small for another one's.
//! The lead is measured when the answer comes. Measured from the proposal, it would grow with each pair of
//! proposals that cross, and tokens would leave the clocks.

use std::time::SystemTime;

use lockkeeper_core::epoch_at;

/// Chooses epochs that follow the wall clock and are larger than all that the members have told.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    /// The last proposal.
    last: u64,
    /// How far the epochs of the members are ahead of the wall clock of this host. Where the clock of another
    /// proposer is ahead, only the first proposals are refused.
    ahead: u64,
}

/// By how much each proposal lowers the lead over the wall clock: 61 µs. Refused proposers raise each other's lead by
/// what messages are late.
const LOWERED: u64 = 1 << 10;

impl Epochs {
    /// Returns the next proposal, which is not smaller than `least`.
    pub(crate) fn next(&mut self, now: SystemTime, least: u64) -> u64 {
        let clock = epoch_at(now).saturating_add(self.ahead);
        self.ahead = self.ahead.saturating_sub(LOWERED);
        self.last = whole(clock.max(self.last.saturating_add(1)).max(least));
        self.last
    }

    /// Records that the members refuse all epochs up to `last`.
    pub(crate) fn learn(&mut self, last: u64, now: SystemTime) {
        self.last = self.last.max(last);
        self.ahead = self.ahead.max(last.saturating_sub(epoch_at(now)));
    }
}

/// Returns the first epoch that is not smaller, and is that of a whole microsecond: Redis counts these, and tells
/// operators no other ones.
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
        let later = epochs.next(at(15), 0);
        assert!(later > epoch_at(at(35)) - 2 * LOWERED);
        assert!(later <= epoch_at(at(35)));
        assert_eq!(epochs.next(at(15), epoch_at(at(36))), epoch_at(at(36)));
    }
}
