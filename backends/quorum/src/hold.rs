//! One vote and the leases that it won, which the caller and the workers of the members share.

mod answers;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, CancelRegistration, Clock, ErasedLease, Error, Grant, HostInstant, LockName,
};

use crate::ballot::{Answer, Ballot, Decision, Vote};
use crate::lock;

/// How long the other members are waited for after a majority has answered. A member that takes longer is
/// slow.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);
/// The time for the release of an unneeded lease.
pub(crate) const GIVE_BACK: Duration = Duration::from_secs(2);
/// The longest sleep before the clock is read again: time-outs do not advance while the host is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A grant of a [`QuorumProvider`](crate::QuorumProvider).
#[derive(Debug)]
pub struct QuorumLease {
    pub(crate) hold: Arc<Hold>,
    /// Whether a drop has posted the releases, and nothing has waited for their answers yet.
    pub(crate) is_dropped: bool,
}

pub(crate) struct Hold {
    pub(crate) name: LockName,
    /// How long members keep a lease.
    pub(crate) ttl: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    ballot: Ballot,
    /// Whether the leases must be released, also leases that come late.
    is_over: bool,
    slots: Vec<Slot>,
    /// The answers to the last renewal or release.
    answers: Vec<Answer>,
    /// The last renewal.
    renewal: Round,
    errors: Errors,
}

/// The last error of each member, in the order of the members.
pub(crate) type Errors = Vec<Option<Error>>;

/// One renewal of all leases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// The number of the renewal. An answer to an earlier renewal proves nothing.
    pub(crate) number: u64,
    pub(crate) ttl: Duration,
    pub(crate) deadline: HostInstant,
}

/// A request for a hold that the worker of a member makes to its store.
pub(crate) struct Job {
    pub(crate) hold: Arc<Hold>,
    pub(crate) ask: Ask,
    /// The end of the wait for the answer.
    pub(crate) deadline: HostInstant,
}

pub(crate) enum Ask {
    /// A vote on an epoch, or a grant with an epoch that the member chooses.
    Propose {
        epoch: Option<u64>,
        ttl: Duration,
    },
    Renew(Round, ErasedLease),
    /// A release, which is repeated until the lease has ended by itself, at this time. Has the error of a release that may
    /// have freed the lease.
    Release(ErasedLease, HostInstant, Option<Error>),
}

impl Job {
    /// Returns the release of a lease, which ends by itself some time after `now`.
    pub(crate) fn release(
        hold: &Arc<Hold>,
        lease: ErasedLease,
        now: HostInstant,
        deadline: HostInstant,
    ) -> Self {
        Self {
            hold: Arc::clone(hold),
            ask: Ask::Release(lease, now + hold.ttl, None),
            deadline,
        }
    }

    /// Returns a renewal of a lease.
    pub(crate) fn renew(hold: &Arc<Hold>, round: Round, lease: ErasedLease) -> Self {
        Self {
            hold: Arc::clone(hold),
            ask: Ask::Renew(round, lease),
            deadline: round.deadline,
        }
    }
}

/// The lease of one member.
enum Slot {
    /// There is no lease, and the member is not asked for one.
    None,
    /// The member did not grant the lease, or was found to have lost it, at this time.
    Lost(HostInstant),
    Idle(ErasedLease),
    /// The worker of the member is requesting, renewing or releasing the lease.
    Away,
    /// The worker of the member is requesting the lease again.
    Regained,
    Released,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut it = f.debug_struct("Hold");
        it.field("name", &self.name).finish_non_exhaustive()
    }
}

impl Hold {
    /// Begins a vote on an epoch. `leases` has the leases, with their epochs, of members that have granted
    /// already. Of the other members, those with `is_asked` are asked.
    pub(crate) fn new(
        name: LockName,
        ttl: Duration,
        epoch: u64,
        leases: Vec<Option<(ErasedLease, u64)>>,
        is_asked: impl Fn(usize) -> bool,
    ) -> Self {
        let begun = leases
            .into_iter()
            .enumerate()
            .map(|(at, lease)| match lease {
                Some((lease, epoch)) => (Vote::Granted(epoch), Slot::Idle(lease)),
                None if is_asked(at) => (Vote::Pending, Slot::Away),
                None => (Vote::Failed, Slot::None),
            });
        let (votes, slots): (Vec<_>, Vec<_>) = begun.unzip();
        Self {
            name,
            ttl,
            state: Mutex::new(State {
                ballot: Ballot::new(epoch, votes),
                is_over: false,
                answers: vec![Answer::Unknown; slots.len()],
                errors: vec![None; slots.len()],
                slots,
                renewal: Round::default(),
            }),
            changed: Condvar::new(),
        }
    }

    /// Makes a cancel of the request end the waits for votes, until the result is dropped.
    pub(crate) fn wake_on_cancel(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
    ) -> Option<CancelRegistration> {
        let hold = Arc::clone(self);
        let wake = move || {
            // A thread that has seen no cancel holds the mutex until it sleeps.
            drop(lock(&hold.state));
            hold.changed.notify_all();
        };
        request.cancel().map(|cancel| cancel.on_cancel(wake))
    }

    /// Waits until `poll` returns a result. Before that, `poll` returns the time of its next call at the
    /// latest.
    fn wait<T>(
        &self,
        clock: &dyn Clock,
        mut poll: impl FnMut(&mut State, HostInstant) -> Result<T, HostInstant>,
    ) -> T {
        let mut state = lock(&self.state);
        loop {
            let now = clock.now();
            let until = match poll(&mut state, now) {
                Ok(found) => return found,
                Err(until) => until,
            };
            let limit = until.saturating_since(now).min(LONGEST_SLEEP);
            let slept = self.changed.wait_timeout(state, limit);
            state = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for the outcome of the vote until `deadline` or a cancel. Returns it with the votes and the errors.
    pub(crate) fn decide(
        &self,
        request: &AcquireRequest<'_>,
        began: HostInstant,
        deadline: HostInstant,
    ) -> (Decision, Vec<Vote>, Errors) {
        self.wait(request.clock(), |state, now| {
            let until = match state.ballot.has_answers() {
                true => deadline.min(began + PATIENCE),
                false => deadline,
            };
            let is_over = now >= until || request.is_cancelled();
            let decision = state.ballot.decide(is_over).ok_or(until)?;
            Ok((
                decision,
                state.ballot.votes().to_vec(),
                state.errors.clone(),
            ))
        })
    }

    /// Waits for the vote of one member until `deadline` or a cancel. Returns it with the error of the member.
    pub(crate) fn vote_of(
        &self,
        member: usize,
        request: &AcquireRequest<'_>,
        deadline: HostInstant,
    ) -> (Vote, Option<Error>) {
        self.wait(request.clock(), |state, now| {
            let vote = state.ballot.votes().get(member).copied();
            match vote.unwrap_or(Vote::Failed) {
                Vote::Pending if now < deadline && !request.is_cancelled() => Err(deadline),
                vote => Ok((vote, state.errors.get(member).cloned().flatten())),
            }
        })
    }

    /// Records the vote of a member, which came at `now`. A regained lease that comes at `deadline` or later does
    /// not count. Returns the worker's next request, if the hold does not keep the lease or a renewal waits for it.
    pub(crate) fn voted(
        self: &Arc<Self>,
        member: usize,
        now: HostInstant,
        deadline: HostInstant,
        answer: Result<Option<Grant<ErasedLease>>, Error>,
    ) -> Option<Job> {
        let mut state = lock(&self.state);
        let is_regained = matches!(state.slots.get(member), Some(Slot::Regained));
        let (vote, lease) = match answer {
            Ok(Some(grant)) => (Vote::Granted(grant.epoch), Some(grant.lease)),
            Ok(None) => (Vote::Busy, None),
            Err(error) => match error.last_epoch() {
                Some(last) => (Vote::TooSmall(last), None),
                None => {
                    state.fail(member, error);
                    (Vote::Failed, None)
                }
            },
        };
        state.ballot.record(member, vote);
        let give_back = |hold, lease| Some(Job::release(hold, lease, now, now + GIVE_BACK));
        let (next, slot) = match lease {
            Some(lease) if is_regained && now >= deadline => {
                // Its release says nothing about this hold.
                let none = Self::new(self.name.clone(), self.ttl, 0, Vec::new(), |_| false);
                (give_back(&Arc::new(none), lease), Slot::Lost(now))
            }
            Some(lease) if state.is_over => return give_back(self, lease),
            Some(lease) if state.answers.get(member) == Some(&Answer::Pending) => {
                return Some(Job::renew(self, state.renewal, lease));
            }
            Some(lease) => (None, Slot::Idle(lease)),
            None => (None, Slot::Lost(now)),
        };
        // Without a grant, there is no renewal and no release.
        let answer = matches!(slot, Slot::Lost(_)).then_some(Answer::Lost);
        state.put(member, slot, answer);
        self.changed.notify_all();
        next
    }

    /// Takes the leases that no worker has, with the epochs of their grants. The workers release leases that
    /// come later.
    pub(crate) fn give_up(&self) -> Vec<(usize, ErasedLease, u64)> {
        let mut state = lock(&self.state);
        state.is_over = true;
        let votes = state.ballot.votes().to_vec();
        let leases = votes.into_iter().enumerate().filter_map(|(member, vote)| {
            let Vote::Granted(epoch) = vote else {
                return None;
            };
            let lease = state.take(member)?;
            Some((member, lease, epoch))
        });
        leases.collect()
    }
}

impl State {
    /// Takes the lease of a member, if no worker has it.
    fn take(&mut self, member: usize) -> Option<ErasedLease> {
        let slot = self.slots.get_mut(member)?;
        match std::mem::replace(slot, Slot::Away) {
            Slot::Idle(lease) => Some(lease),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Begins a request to all members. A member without a lease counts as lost. If the worker of a member has the
    /// lease, the answer comes later.
    fn begin(&mut self) -> Vec<(usize, ErasedLease)> {
        self.errors.fill(None);
        let mut leases = Vec::new();
        for at in 0..self.slots.len() {
            let was_away = matches!(self.slots.get(at), Some(Slot::Away));
            let answer = match self.take(at) {
                Some(lease) => {
                    leases.push((at, lease));
                    Answer::Pending
                }
                None if was_away => Answer::Pending,
                None => Answer::Lost,
            };
            self.answer(at, answer);
        }
        leases
    }

    fn fail(&mut self, member: usize, error: Error) {
        if let Some(at) = self.errors.get_mut(member) {
            *at = Some(error);
        }
    }

    fn answer(&mut self, member: usize, answer: Answer) {
        if let Some(at) = self.answers.get_mut(member) {
            *at = answer;
        }
    }

    fn put(&mut self, member: usize, slot: Slot, answer: Option<Answer>) {
        if let Some(at) = self.slots.get_mut(member) {
            *at = slot;
        }
        if let Some(answer) = answer {
            self.answer(member, answer);
        }
    }
}
