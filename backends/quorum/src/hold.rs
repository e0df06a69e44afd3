//! One vote and the leases that it won, which the caller and the workers of the members share.

mod answers;

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, CancelRegistration, ErasedLease, Error, Grant, HostInstant, LockName,
};

use crate::ballot::{Answer, Ballot, Decision, Tally, Vote};
use crate::lock;

/// How long a majority that has answered waits for the other members. A member that takes longer is slow.
pub(crate) const PATIENCE: Duration = Duration::from_millis(250);
/// The longest sleep before the clock is read again: time-outs do not advance while the host is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// A grant of a [`QuorumProvider`](crate::QuorumProvider).
#[derive(Debug)]
pub struct QuorumLease {
    pub(crate) hold: Arc<Hold>,
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
    /// Whether the leases are to be released, also those that come late.
    is_over: bool,
    slots: Vec<Slot>,
    /// The answers to the last renewal or release.
    answers: Vec<Answer>,
    /// The last renewal.
    renewal: Round,
    /// What the first member that failed has said.
    error: Option<Error>,
}

/// One renewal of all leases.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// Counts renewals. The answer to an earlier one proves nothing.
    pub(crate) number: u64,
    pub(crate) ttl: Duration,
    pub(crate) deadline: HostInstant,
}

/// What a worker does with a lease that it was granted or has renewed.
pub(crate) enum Next {
    /// The hold is over.
    Release(ErasedLease),
    /// The lease was regained too late to be one of the hold, and its release says nothing about the hold.
    Discard(ErasedLease),
    /// Another renewal has begun meanwhile.
    Renew(Round, ErasedLease),
}

/// The lease of one member.
enum Slot {
    /// There is no lease, and the member is not asked for one.
    None,
    /// The member did not grant the lease, or was found to have lost it, at this time.
    Lost(HostInstant),
    Idle(ErasedLease),
    /// The worker of the member asks for it, renews it or releases it.
    Away,
    /// The worker of the member asks for it anew.
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
    /// Begins a vote on an epoch. `leases` has the lease and its epoch for each member that has granted already.
    /// Of the others, those are asked of which `is_asked` says so.
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
                slots,
                renewal: Round::default(),
                error: None,
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

    /// Waits for the outcome of the vote until `deadline` or a cancel. Returns it with the votes, and the first failure.
    pub(crate) fn decide(
        &self,
        request: &AcquireRequest<'_>,
        began: HostInstant,
        deadline: HostInstant,
    ) -> (Decision, Vec<Vote>, Option<Error>) {
        let mut state = lock(&self.state);
        loop {
            let now = request.now();
            let until = match state.ballot.has_answers() {
                true => deadline.min(began + PATIENCE),
                false => deadline,
            };
            let is_over = now >= until || request.is_cancelled();
            if let Some(decision) = state.ballot.decide(is_over) {
                return (decision, state.ballot.votes().to_vec(), state.error.clone());
            }
            state = self.sleep(state, until.saturating_since(now));
        }
    }

    /// Waits for the vote of one member until `deadline` or a cancel. Returns it with the first failure.
    pub(crate) fn vote_of(
        &self,
        member: usize,
        request: &AcquireRequest<'_>,
        deadline: HostInstant,
    ) -> (Vote, Option<Error>) {
        let mut state = lock(&self.state);
        loop {
            let vote = state.ballot.votes().get(member).copied();
            let left = deadline.saturating_since(request.now());
            let is_over = left.is_zero() || request.is_cancelled();
            match vote.unwrap_or(Vote::Failed) {
                Vote::Pending if !is_over => state = self.sleep(state, left),
                vote => return (vote, state.error.clone()),
            }
        }
    }

    fn sleep<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        let slept = self.changed.wait_timeout(state, limit.min(LONGEST_SLEEP));
        slept.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Records the vote of a member, which came at `now`. A regained lease that comes at `deadline` or later is of no use.
    /// Returns what the worker does with a lease that the hold does not keep, or that a renewal waits for.
    pub(crate) fn voted(
        &self,
        member: usize,
        now: HostInstant,
        deadline: HostInstant,
        answer: Result<Option<Grant<ErasedLease>>, Error>,
    ) -> Option<Next> {
        let mut state = lock(&self.state);
        let is_regained = matches!(state.slots.get(member), Some(Slot::Regained));
        let lost = Slot::Lost(now);
        let (vote, lease) = match answer {
            Ok(Some(grant)) => (Vote::Granted(grant.epoch), Some(grant.lease)),
            Ok(None) => (Vote::Busy, None),
            Err(error) => match error.last_epoch() {
                Some(last) => (Vote::TooSmall(last), None),
                None => {
                    state.error.get_or_insert(error);
                    (Vote::Failed, None)
                }
            },
        };
        state.ballot.record(member, vote);
        let (next, slot) = match lease {
            Some(lease) if is_regained && now >= deadline => (Some(Next::Discard(lease)), lost),
            Some(lease) if state.is_over => return Some(Next::Release(lease)),
            Some(lease) if state.answers.get(member) == Some(&Answer::Pending) => {
                return Some(Next::Renew(state.renewal, lease));
            }
            Some(lease) => (None, Slot::Idle(lease)),
            None => (None, lost),
        };
        // What was not granted needs no renewal and no release.
        let answer = matches!(slot, Slot::Lost(_)).then_some(Answer::Lost);
        state.put(member, slot, answer);
        self.changed.notify_all();
        next
    }

    /// Takes the leases that no worker has, with the epochs that they were granted with. Those that come later
    /// are released by the workers.
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

/// What the members have said together, and the first failure.
pub(crate) type Told = (Tally, Option<Error>);

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

    /// Begins to ask all members. A member without a lease has lost it. A member whose worker has the lease answers
    /// later.
    fn begin(&mut self) -> Vec<(usize, ErasedLease)> {
        self.error = None;
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
