//! The decisions of a quorum: who has won a vote, and what the members' answers to a renewal or release mean
//! together. Pure, and run by a simulation in `simulation.rs`.

#[cfg(test)]
mod simulation;

/// Returns the number of members that are a majority of `members`.
pub(crate) const fn majority(members: usize) -> usize {
    members / 2 + 1
}

/// What a member has said to a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    /// The member has not answered yet.
    Pending,
    /// The member has granted the name with this epoch.
    Granted(u64),
    /// The member has another holder or waiter.
    Busy,
    /// The member refuses all epochs up to this one.
    TooSmall(u64),
    /// The member cannot be reached, or is not asked.
    Failed,
}

/// The outcome of a vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A majority has granted the epoch.
    Won,
    /// A majority has another holder.
    Held,
    /// Some member has another holder or waiter, and no proposer needs to have a majority.
    Contested,
    /// This member has another holder or waiter, who goes first: it comes before all members that have granted.
    Behind(usize),
    /// The epoch was too small: all epochs up to this one are.
    Outdated(u64),
    /// Fewer than a majority have answered.
    Outage,
}

/// One vote of all members on one epoch.
#[derive(Clone, Debug)]
pub(crate) struct Ballot {
    epoch: u64,
    votes: Vec<Vote>,
}

impl Ballot {
    /// Begins a vote on an epoch. Members that are not asked have granted already.
    pub(crate) fn new(epoch: u64, votes: Vec<Vote>) -> Self {
        Self { epoch, votes }
    }

    /// Records the vote of a member. Only the first one counts.
    pub(crate) fn record(&mut self, member: usize, vote: Vote) {
        if let Some(at @ Vote::Pending) = self.votes.get_mut(member) {
            *at = vote;
        }
    }

    /// Returns the votes, in the order of the members.
    pub(crate) fn votes(&self) -> &[Vote] {
        &self.votes
    }

    /// Returns whether a majority has answered, so that the others need not be waited for.
    pub(crate) fn has_answers(&self) -> bool {
        let answered = self.count(|vote| !matches!(vote, Vote::Pending | Vote::Failed));
        answered >= majority(self.votes.len())
    }

    /// Returns the first member that is busy, if another one that comes later has granted and none before. Of two proposers
    /// that keep each other from a majority, this is so for exactly one.
    fn behind(&self) -> Option<usize> {
        let position = |wanted: fn(&Vote) -> bool| self.votes.iter().position(wanted);
        let busy = position(|vote| *vote == Vote::Busy)?;
        let granted = position(|vote| matches!(vote, Vote::Granted(_)))?;
        (busy < granted).then_some(busy)
    }

    fn count(&self, is_counted: impl Fn(Vote) -> bool) -> usize {
        self.votes.iter().filter(|vote| is_counted(**vote)).count()
    }

    /// Returns the outcome. While it depends on votes that have not come, the outcome is `None`, unless the wait
    /// for them `is_over`.
    pub(crate) fn decide(&self, is_over: bool) -> Option<Decision> {
        let (members, needed) = (self.votes.len(), majority(self.votes.len()));
        let granted = self.count(|vote| vote == Vote::Granted(self.epoch));
        let busy = self.count(|vote| vote == Vote::Busy);
        let pending = self.count(|vote| vote == Vote::Pending);
        if granted >= needed {
            return Some(Decision::Won);
        }
        if let Some(first) = self.behind() {
            return Some(Decision::Behind(first));
        }
        if granted + pending >= needed && !is_over {
            return None;
        }
        let failed = self.count(|vote| vote == Vote::Failed);
        let missing = failed + if is_over { pending } else { 0 };
        let last = self.votes.iter().filter_map(|vote| match vote {
            Vote::TooSmall(last) => Some(*last),
            _ => None,
        });
        Some(match last.max() {
            _ if missing > members - needed => Decision::Outage,
            _ if busy >= needed => Decision::Held,
            _ if busy > 0 => Decision::Contested,
            Some(last) => Decision::Outdated(last),
            // The rest of the members has granted other epochs.
            None => Decision::Outdated(self.epoch),
        })
    }
}

/// What a member has said to a renewal or a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The member has not answered yet.
    Pending,
    /// The lease was live.
    Live,
    /// The lease was not live, or there is none.
    Lost,
    /// The member cannot be asked, or its reply did not come.
    Unknown,
}

/// What the answers of all members mean together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tally {
    /// The leases of a majority were live, so no other proposer had one.
    Live,
    /// The leases of a majority are not live, whatever else comes.
    Lost,
    /// It depends on answers that have not come.
    Open,
    /// All answers have come, and it stays unknown.
    Unknown,
}

/// Returns what the answers of all members mean together.
pub(crate) fn tally(answers: &[Answer]) -> Tally {
    let needed = majority(answers.len());
    let count = |wanted| answers.iter().filter(|answer| **answer == wanted).count();
    if count(Answer::Live) >= needed {
        Tally::Live
    } else if count(Answer::Lost) > answers.len() - needed {
        Tally::Lost
    } else if count(Answer::Pending) > 0 {
        Tally::Open
    } else {
        Tally::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENDING: Vote = Vote::Pending;
    const YES: Vote = Vote::Granted(5);

    fn decide(votes: &[Vote], is_over: bool) -> Option<Decision> {
        Ballot::new(5, votes.to_vec()).decide(is_over)
    }

    #[test]
    fn majority_wins_whatever_the_others_say() {
        assert_eq!((majority(3), majority(5)), (2, 3));
        for other in [PENDING, Vote::Failed, Vote::Busy, Vote::TooSmall(9)] {
            assert_eq!(decide(&[YES, YES, other], false), Some(Decision::Won));
        }
        assert_eq!(decide(&[YES, PENDING, PENDING], false), None);
    }

    #[test]
    fn another_epoch_is_no_vote() {
        let votes = [Vote::Granted(4), YES, Vote::Failed];
        assert_eq!(decide(&votes, false), Some(Decision::Outdated(5)));
        let votes = [YES, Vote::TooSmall(9), Vote::TooSmall(7)];
        assert_eq!(decide(&votes, false), Some(Decision::Outdated(9)));
    }

    #[test]
    fn held_contested_and_outage_are_told_apart() {
        let held = [Vote::Busy, Vote::Busy, PENDING];
        assert_eq!(decide(&held, false), Some(Decision::Held));
        let contested = [YES, Vote::Busy, PENDING];
        assert_eq!(decide(&contested, false), None);
        assert_eq!(decide(&contested, true), Some(Decision::Contested));
        let outage = [Vote::Failed, Vote::Failed, PENDING];
        assert_eq!(decide(&outage, false), Some(Decision::Outage));
        let outage = [Vote::Busy, Vote::Failed, PENDING];
        assert_eq!(decide(&outage, true), Some(Decision::Outage));
    }

    #[test]
    fn proposer_behind_another_one_knows_at_once() {
        let behind = Some(Decision::Behind(1));
        assert_eq!(decide(&[PENDING, Vote::Busy, YES], false), behind);
        assert_eq!(decide(&[Vote::Failed, Vote::Busy, YES], true), behind);
        assert_eq!(decide(&[PENDING, YES, Vote::Busy], false), None);
        // It has won whatever the first member says, and may still get an earlier member than that.
        assert_eq!(decide(&[Vote::Busy, YES, YES], false), Some(Decision::Won));
        assert_eq!(decide(&[PENDING, Vote::Busy, PENDING], false), None);
    }

    #[test]
    fn answers_of_a_majority_count() {
        use Answer::{Live, Lost, Pending, Unknown};
        assert_eq!(tally(&[Live, Pending, Live]), Tally::Live);
        assert_eq!(tally(&[Lost, Pending, Lost]), Tally::Lost);
        assert_eq!(tally(&[Live, Pending, Lost]), Tally::Open);
        assert_eq!(tally(&[Live, Unknown, Lost]), Tally::Unknown);
    }

    #[test]
    fn only_the_first_vote_counts() {
        let mut ballot = Ballot::new(5, vec![PENDING; 3]);
        ballot.record(0, Vote::Busy);
        ballot.record(0, YES);
        assert_eq!(ballot.votes(), [Vote::Busy, PENDING, PENDING]);
    }
}
