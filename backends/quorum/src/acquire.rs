//! Acquiring a name. A caller first asks all members at the same time. If the name is not free, it waits in the queue of
//! one member. When that member grants the name, the caller asks the other members to grant it with the same epoch.
//!
//! Every caller begins at the first member that it can reach. So the first member decides the order, and notifies
//! one waiter after the other. If two callers begin at different members, a majority still decides, but the order
//! of the callers is lost.
//!
//! A caller of a free name also waits for the first member's vote, 0.25 s at most. If that member has reserved the
//! name for a waiter, the caller releases the other leases. Otherwise single attempts would overtake such waiters.
//!
//! A caller that is first at its member asks the other members again while they are not free, since releases may
//! reach them later. If two callers have leases of different members, the caller with the earlier member in the
//! URL goes first. A single attempt repeats this for 0.25 s, and a waiting caller for 0.75 s: a vote lasts 0.25
//! s while a member is slow. With 0.25 s for both, two callers gave way to each other forever in 47 of 100
//! schedules of `simulation.rs`.
//!
//! If a caller finds another holder at later members, it gives its turn back, and waits at the first of those
//! members. That holder got the name while the first member was out of reach.

mod vote;

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, CancelRegistration, ErasedLease, Error, ErrorKind, Grant, HostInstant,
};

use crate::ballot::{Vote, majority};
use crate::hold::{Ask, Hold, Job, PATIENCE, QuorumLease};
use crate::member::Member;
use crate::provider::{Quorum, few_members, member_ttl};

/// The mean pause before another vote. It doubles with each vote.
const PAUSE: Duration = Duration::from_millis(1);
/// The time for which callers ask only the first member, after one of them met another holder or waiter.
/// Attempts at all members would disturb the caller that is first.
const CONTENDED: Duration = Duration::from_secs(1);
/// The time for a vote at the end of a wait. The caller returns 100 ms after that at the latest.
const GRACE: Duration = Duration::from_millis(80);
/// How many times the pause doubles.
const DOUBLINGS: u32 = 4;

/// The leases that the caller has before a vote, with their epochs.
type Leases = Vec<Option<(ErasedLease, u64)>>;

/// What a caller does next.
enum Step {
    /// The caller makes an attempt at the first member that answers.
    Enter,
    /// The caller asks for the rest of a majority. This member has granted the name; or the name is probably free,
    /// and this member is asked with all others.
    TakeTurn(usize),
    /// The caller waits at this member, which has another holder or waiter that goes first.
    Wait(usize),
    /// The caller has the name, or the wait is over or was cancelled.
    End(Option<Grant<QuorumLease>>),
}

/// One acquisition.
pub(crate) struct Acquisition<'a> {
    quorum: &'a Quorum,
    request: &'a AcquireRequest<'a>,
    /// The leases that were granted so far, and the time of the first request.
    leases: Leases,
    asked_at: Option<HostInstant>,
    /// The epoch of a lease, which is proposed to the others.
    epoch: Option<u64>,
    /// How often an epoch was too small. After that the first member gets a proposal, too.
    refused: u32,
    /// The smallest epoch that the members may accept after a refusal.
    least_epoch: u64,
    /// How often a wait at a member failed.
    failed: u32,
}

impl<'a> Acquisition<'a> {
    pub(crate) fn new(quorum: &'a Quorum, request: &'a AcquireRequest<'a>) -> Self {
        Self {
            quorum,
            request,
            leases: no_leases(quorum),
            asked_at: None,
            epoch: None,
            refused: 0,
            least_epoch: 0,
            failed: 0,
        }
    }

    /// Acquires the name as [`Backend::acquire`](lockkeeper_core::Backend::acquire) says.
    pub(crate) fn run(mut self) -> Result<Option<Grant<QuorumLease>>, Error> {
        let mut step = self.free_at().map_or(Step::Enter, Step::TakeTurn);
        loop {
            step = match step {
                Step::Enter => self.enter()?,
                Step::TakeTurn(head) => self.take_turn(head)?,
                Step::Wait(member) => self.wait(member)?,
                Step::End(grant) => return Ok(grant),
            };
        }
    }

    /// Returns the first member if the name is probably free, since no caller of this process has met another
    /// holder recently.
    fn free_at(&self) -> Option<usize> {
        let until = self.quorum.contended_until.load(Ordering::Relaxed);
        let is_contended = self.request.now().as_nanos() < until;
        let first = self.quorum.by_turn().next()?;
        (!is_contended && !first.is_slow()).then_some(first.index)
    }

    /// Returns the end of a vote: the limit of an attempt, but soon after the end of the wait.
    fn end_of_vote(&self) -> HostInstant {
        let attempt = self.request.now() + self.quorum.attempt_limit;
        attempt.min(self.end())
    }

    /// Returns the end of the call.
    fn end(&self) -> HostInstant {
        let end = self.request.end();
        let deadline = self.request.deadline();
        deadline.map_or(end, |deadline| end.min(deadline + GRACE))
    }

    /// Returns whether the caller's wait is over or cancelled.
    fn is_over(&self) -> bool {
        let is_late = |deadline| self.request.now() >= deadline;
        self.request.is_cancelled() || self.request.deadline().is_some_and(is_late)
    }

    /// Makes an attempt at the first member that answers.
    fn enter(&mut self) -> Result<Step, Error> {
        let quorum = self.quorum;
        let deadline = self.end_of_vote();
        let mut errors = vec![None; quorum.members.len()];
        // A slow member is skipped, unless all members are slow.
        for patience in [PATIENCE, quorum.attempt_limit] {
            let mut failed = 0;
            for member in quorum.by_turn() {
                let until = deadline.min(self.request.now() + patience);
                match self.attempt(member, until, deadline)? {
                    (Vote::Granted(_), _) => return Ok(Step::TakeTurn(member.index)),
                    (Vote::Busy, _) => return Ok(Step::Wait(member.index)),
                    _ if self.request.is_cancelled() => return Ok(Step::End(None)),
                    (Vote::Failed | Vote::TooSmall(_), error) => {
                        failed += 1;
                        if let Some(at) = errors.get_mut(member.index) {
                            *at = error;
                        }
                    }
                    (Vote::Pending, _) => {}
                }
            }
            if failed >= majority(quorum.members.len()) {
                break;
            }
        }
        Err(few_members(quorum, &errors))
    }

    /// Makes attempts at one member, until its epoch is large enough.
    fn attempt(
        &mut self,
        member: &Member,
        until: HostInstant,
        deadline: HostInstant,
    ) -> Result<(Vote, Option<Error>), Error> {
        let (quorum, request) = (self.quorum, self.request);
        loop {
            let now = request.now();
            let epoch = (self.refused > 0).then(|| self.next_epoch());
            let is_asked = |at| at == member.index;
            let leases = no_leases(quorum);
            let (hold, _wake) = self.propose(leases, epoch, is_asked, deadline);
            let (vote, error) = hold.vote_of(member.index, request, until);
            if request.is_cancelled() {
                self.give_way(&hold);
                return Ok((Vote::Pending, None));
            }
            // A grant may have come just now. A later one is released.
            if let Some((_, lease, epoch)) = hold.give_up().pop() {
                self.keep_first(member, lease, epoch, now);
                return Ok((Vote::Granted(epoch), None));
            }
            match vote {
                Vote::TooSmall(last) => self.learn(epoch.unwrap_or_default(), last, now)?,
                vote => return Ok((vote, error)),
            }
        }
    }

    /// Asks members without a lease for a vote on an epoch, or for a grant with an epoch that they choose, until
    /// `deadline`. Until the second result is dropped, a cancel ends the waits for their votes.
    fn propose(
        &self,
        leases: Leases,
        epoch: Option<u64>,
        is_asked: impl Fn(usize) -> bool,
        deadline: HostInstant,
    ) -> (Arc<Hold>, Option<CancelRegistration>) {
        let (name, ttl) = (self.request.name().clone(), self.request.ttl());
        let ttl = member_ttl(ttl);
        let members = self.quorum.members.iter().zip(&leases);
        let asked = members.filter(|(it, lease)| lease.is_none() && is_asked(it.index));
        let asked: Vec<_> = asked.map(|(member, _)| member).collect();
        let epoch_of_vote = epoch.unwrap_or_default();
        let hold = Arc::new(Hold::new(name, ttl, epoch_of_vote, leases, is_asked));
        for member in asked {
            member.post(Job {
                hold: Arc::clone(&hold),
                ask: Ask::Propose { epoch, ttl },
                deadline,
            });
        }
        let wake = hold.wake_on_cancel(self.request);
        (hold, wake)
    }

    /// Waits in the queue of a member, if the request has a wait.
    fn wait(&mut self, member: usize) -> Result<Step, Error> {
        let (quorum, request) = (self.quorum, self.request);
        let until = request.now() + CONTENDED;
        let contended = &quorum.contended_until;
        contended.store(until.as_nanos(), Ordering::Relaxed);
        request.contended();
        let deadline = match request.deadline() {
            Some(deadline) if !self.is_over() => deadline,
            _ => return Ok(Step::End(None)),
        };
        let member = quorum.members.get(member);
        let Some((member, store)) = member.and_then(|it| Some((it, it.opened()?))) else {
            return Ok(Step::Enter);
        };
        let ttl = member_ttl(request.ttl());
        let waiting = AcquireRequest::attempt(request.name(), ttl, request.clock());
        let waiting = waiting
            .waiting_until(deadline)
            .ending_at(self.end())
            .cancelled_by(request.cancel());
        match store.acquire(&waiting) {
            Ok(Some(grant)) => {
                self.keep_first(member, grant.lease, grant.epoch, grant.asked_at);
                Ok(Step::TakeTurn(member.index))
            }
            Ok(None) => Ok(Step::End(None)),
            // The other members may do without this one.
            Err(error) if error.is_retryable() => {
                let soon = self.request.now() + GRACE;
                store.abandon(&waiting.ending_at(soon.min(self.end())));
                if self.request.is_cancelled() {
                    return Ok(Step::End(None));
                }
                if self.is_over() {
                    return Err(unanswered_wait(member, error));
                }
                member.failed();
                self.pause(self.failed);
                self.failed += 1;
                Ok(Step::Enter)
            }
            Err(error) => Err(error),
        }
    }

    fn keep_first(&mut self, member: &Member, lease: ErasedLease, epoch: u64, at: HostInstant) {
        self.asked_at = Some(at);
        self.epoch = Some(epoch);
        if let Some(slot) = self.leases.get_mut(member.index) {
            *slot = Some((lease, epoch));
        }
    }

    /// Sleeps before retry number `repeats`, at most until a cancel or the end of the wait. No member notifies of
    /// releases at another member.
    fn pause(&self, repeats: u32) {
        let pause = PAUSE * (1 << repeats.min(DOUBLINGS));
        let pause = pause.mul_f64(0.5 + fastrand::f64());
        let left = self
            .request
            .deadline()
            .map(|it| it.saturating_since(self.request.now()));
        let (wake, woken) = mpsc::channel();
        let cancelled = wake.clone();
        let _registration = self.request.cancel().map(|cancel| {
            cancel.on_cancel(move || {
                // The pause may be over by now.
                let _ = cancelled.send(());
            })
        });
        // `wake` lives until the end of the pause, so only a cancel ends the pause early.
        let _ = woken.recv_timeout(left.map_or(pause, |left| pause.min(left)));
        drop(wake);
    }
}

/// Returns the error of a wait at whose end the member with the queue failed. Whether the name is held is unknown then.
fn unanswered_wait(member: &Member, cause: Error) -> Error {
    let location = member.source.location();
    let text = format!(
        "the member {location}, at which the caller waited, did not answer at the end of the wait"
    );
    Error::new(ErrorKind::Unavailable, text).with_source(cause)
}

fn no_leases(quorum: &Quorum) -> Leases {
    quorum.members.iter().map(|_| None).collect()
}
