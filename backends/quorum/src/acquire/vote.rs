//! The votes of the members.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{CancelRegistration, ErasedLease, Error, Grant, HostInstant, epochs_in};

use crate::ballot::{Decision, Vote, majority};
use crate::hold::{Errors, GIVE_BACK, Hold, PATIENCE, QuorumLease};
use crate::lock;
use crate::provider::{few_members, member_ttl};

use super::{Acquisition, Step, no_leases};

/// How long a waiting caller keeps its turn while members are busy. A vote takes [`PATIENCE`] while a member is
/// slow, and the caller needs another vote after callers behind it have given way.
const TURN: Duration = Duration::from_millis(750);
/// How often a refused epoch is replaced by a larger one.
const LARGER: u32 = 32;
/// How long a cancelled caller waits for the release of what the members granted.
const CANCEL_PATIENCE: Duration = Duration::from_millis(50);

impl Acquisition<'_> {
    /// Asks the members that have not granted the name: all, or all except `head`. While some are not free, the
    /// caller keeps its turn for a time, since the last holder's releases reach the members one after the other. A
    /// caller that is not first releases its leases as soon as it notices that.
    pub(super) fn take_turn(&mut self, head: usize) -> Result<Step, Error> {
        let until = self.request.now() + self.request.deadline().map_or(PATIENCE, |_| TURN);
        let mut repeats = 0;
        loop {
            if self.request.is_cancelled() {
                self.give_back_kept();
                return Ok(Step::End(None));
            }
            let vote = self.vote();
            if let Decision::Behind(busy) = vote.decision {
                self.give_way(&vote.hold);
                return Ok(Step::Wait(busy));
            }
            // The vote of `head` is needed even if the others are a majority: `head` may have a waiter that goes
            // first.
            let patience = vote.deadline.min(vote.began + PATIENCE);
            let (at_head, _) = vote.hold.vote_of(head, self.request, patience);
            if self.request.is_cancelled() {
                self.give_way(&vote.hold);
                return Ok(Step::End(None));
            }
            match (vote.decision, at_head) {
                (_, Vote::Busy) => {
                    self.give_way(&vote.hold);
                    return Ok(Step::Wait(head));
                }
                (Decision::Won, _) => return Ok(Step::End(Some(vote.into_grant()))),
                (Decision::Outage, _) => {
                    self.give_back(&vote.hold);
                    return Err(few_members(self.quorum, &vote.errors));
                }
                (Decision::Outdated(last), _) => {
                    let is_kept = self.keep(&vote);
                    self.learn(vote.epoch, last, vote.began)?;
                    if !is_kept {
                        return Ok(Step::Enter);
                    }
                }
                (Decision::Held | Decision::Contested, Vote::Granted(_)) => {
                    let busy = vote.votes.iter().position(|it| *it == Vote::Busy);
                    let busy = busy.unwrap_or(head);
                    let has_time = self.request.now() < until && !self.is_over();
                    if !has_time {
                        self.give_way(&vote.hold);
                        return Ok(Step::Wait(busy));
                    }
                    self.epoch = Some(vote.epoch);
                    if !self.keep(&vote) {
                        return Ok(Step::Enter);
                    }
                    self.pause(repeats);
                    repeats += 1;
                }
                (Decision::Held | Decision::Contested | Decision::Behind(_), _) => {
                    self.give_back(&vote.hold);
                    return Ok(Step::Enter);
                }
            }
        }
    }

    /// Raises the next proposal above `last`, which members replied to a proposal of the time `began`.
    pub(super) fn learn(
        &mut self,
        proposed: u64,
        last: u64,
        began: HostInstant,
    ) -> Result<(), Error> {
        lock(&self.quorum.epochs).learn(last, SystemTime::now());
        self.refused += 1;
        // While the answer and the next proposal are in flight, the epochs of a busy member grow. This lead is not
        // kept: two proposers with colliding proposals would raise each other's lead without end.
        let on_the_way = self.request.now().saturating_since(began) * self.refused;
        self.least_epoch = last.saturating_add(epochs_in(on_the_way));
        if self.refused <= LARGER {
            return Ok(());
        }
        self.give_back_kept();
        Err(Error::epoch_too_small(proposed, last))
    }

    /// Returns the next proposal.
    pub(super) fn next_epoch(&self) -> u64 {
        lock(&self.quorum.epochs).next(SystemTime::now(), self.least_epoch)
    }

    /// Asks all members for their votes, except those that have granted already.
    fn vote(&mut self) -> VoteResult {
        let now = self.request.now();
        let leases = std::mem::replace(&mut self.leases, no_leases(self.quorum));
        let deadline = self.end_of_vote();
        let epoch = self.epoch.take();
        let epoch = epoch.unwrap_or_else(|| self.next_epoch());
        let (hold, wake) = self.propose(leases, Some(epoch), |_| true, deadline);
        let (decision, votes, errors) = hold.decide(self.request, now, deadline);
        VoteResult {
            began: now,
            deadline,
            asked_at: self.asked_at.map_or(now, |asked_at| asked_at.min(now)),
            epoch,
            hold,
            decision,
            votes,
            errors,
            _wake: wake,
        }
    }

    /// Keeps the leases if a further vote of the other members can be won. Meanwhile the leases exclude other
    /// callers. Otherwise releases them, and returns false.
    fn keep(&mut self, vote: &VoteResult) -> bool {
        let granted = vote.hold.give_up();
        let counted = granted
            .iter()
            .filter(|(.., epoch)| Some(*epoch) == self.epoch);
        let members = self.quorum.members.len();
        let failed = vote.votes.iter().filter(|it| **it == Vote::Failed);
        let no_votes = granted.len() + failed.count();
        if counted.count() + members < majority(members) + no_votes {
            self.epoch = None;
            let leases = granted
                .into_iter()
                .map(|(member, lease, _)| (member, lease));
            self.release(&vote.hold, leases.collect());
            return false;
        }
        self.asked_at = Some(vote.asked_at);
        for (member, lease, epoch) in granted {
            if let Some(at) = self.leases.get_mut(member) {
                *at = Some((lease, epoch));
            }
        }
        true
    }

    /// Releases leases beside another holder, or of a cancelled caller.
    pub(super) fn give_way(&self, hold: &Arc<Hold>) {
        self.give_back(hold);
        let patience = match self.request.deadline() {
            _ if self.request.is_cancelled() => CANCEL_PATIENCE,
            None => PATIENCE,
            Some(_) => return,
        };
        // If the process ends now, unreleased leases stay until their ttl is over.
        let until = self.request.now() + patience;
        hold.release(self.request.clock(), until, &self.quorum.quick());
    }

    fn give_back(&self, hold: &Arc<Hold>) {
        self.release(hold, hold.begin_release());
    }

    /// Releases leases that were kept for a vote that does not follow.
    fn give_back_kept(&mut self) {
        let leases = std::mem::replace(&mut self.leases, no_leases(self.quorum));
        let (name, ttl) = (self.request.name().clone(), self.request.ttl());
        let ttl = member_ttl(ttl);
        let hold = Hold::new(name, ttl, 0, leases, |_| false);
        self.give_way(&Arc::new(hold));
    }

    fn release(&self, hold: &Arc<Hold>, leases: Vec<(usize, ErasedLease)>) {
        let deadline = self.request.now() + GIVE_BACK;
        self.quorum.post_releases(hold, leases, deadline);
    }
}

/// A vote and its result.
struct VoteResult {
    began: HostInstant,
    deadline: HostInstant,
    /// When the first of the leases was requested.
    asked_at: HostInstant,
    epoch: u64,
    hold: Arc<Hold>,
    decision: Decision,
    votes: Vec<Vote>,
    errors: Errors,
    /// A cancel still ends a further wait of the caller.
    _wake: Option<CancelRegistration>,
}

impl VoteResult {
    fn into_grant(self) -> Grant<QuorumLease> {
        Grant {
            lease: QuorumLease {
                hold: self.hold,
                is_dropped: false,
            },
            epoch: self.epoch,
            asked_at: self.asked_at,
            slot: 0,
        }
    }
}
