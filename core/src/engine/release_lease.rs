//! Giving a lease back to the store: one attempt, and its repetition.
//!
//! What a release and a drop share is always inlined: see `release.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, ErasedLease, Released};
use crate::error::{Error, ErrorKind};
use crate::sync::run_caught;

use super::backoff::Limits;
use super::batch::Entry;
use super::exchange::{LeaseAsk, LeaseVerb};
use super::group::{LeaseReply, Leases, LeftLease, released, unanswered};
use super::hold::Hold;
use super::hold::lease::Unwanted;
use super::retry::Retry;
use super::{ATTEMPT_LIMIT, DROP_LIMIT, Engine};

/// The longest that a release waits for the store.
pub(super) const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// The outcome of one attempt to release a lease.
pub(super) enum ReleaseAttempt {
    Answered(Result<Released, Error>),
    /// The store did not answer; it may have released the lease if the error is
    /// [`ErrorKind::Unknown`].
    NoAnswer(ErasedLease, Error),
    /// The deadline came while the request was under way: [leave](Engine::leave_lease) it.
    UnderWay(Arc<Entry<Leases>>),
}

impl Engine {
    /// Releases a lease that a renewal may have.
    pub(super) fn return_lease(
        self: &Arc<Self>,
        hold: &Hold,
        lease: Option<ErasedLease>,
        now: HostInstant,
    ) -> Result<Released, Error> {
        let deadline = release_deadline(hold, now);
        let (lease, now) = match lease {
            Some(lease) => (lease, now),
            None => match hold.take_to_release(deadline, &*self.clock)? {
                Some(lease) => (lease, self.clock.now()),
                None => return Ok(Released::AlreadyLost),
            },
        };
        let attempt = self.attempt_release(lease, (now, deadline), None);
        self.repeat_release(hold, attempt, deadline, now)
    }

    /// Returns the answer to a release that began at `now`, which is repeated while the store does not
    /// answer.
    #[inline(always)]
    pub(super) fn repeat_release(
        self: &Arc<Self>,
        hold: &Hold,
        attempt: ReleaseAttempt,
        deadline: HostInstant,
        now: HostInstant,
    ) -> Result<Released, Error> {
        match attempt {
            ReleaseAttempt::Answered(answer) => answer,
            attempt => self.repeat_unanswered(hold, attempt, deadline, now),
        }
    }

    /// Repeats a release whose first attempt the store did not answer.
    #[cold]
    fn repeat_unanswered(
        self: &Arc<Self>,
        hold: &Hold,
        mut attempt: ReleaseAttempt,
        deadline: HostInstant,
        now: HostInstant,
    ) -> Result<Released, Error> {
        let limits = Limits {
            clock: &*self.clock,
            until: deadline.min(now + ATTEMPT_LIMIT),
            cancel: None,
        };
        let mut retry = Retry::new(limits, now);
        loop {
            match attempt {
                ReleaseAttempt::Answered(answer) => return answer,
                ReleaseAttempt::NoAnswer(lease, error) => {
                    retry.after(&error, None)?;
                    let asked_at = retry.asked_at();
                    attempt = self.attempt_release(lease, (asked_at, deadline), retry.lost_reply());
                }
                ReleaseAttempt::UnderWay(entry) => {
                    let (ttl, guard) = (hold.policy.ttl(), None);
                    self.leave_lease(&entry, LeftLease::Release { ttl, guard });
                    return Err(unanswered());
                }
            }
        }
    }

    /// Asks the store once to release a lease: from now until a deadline. `lost_reply` is the error of an attempt before it whose
    /// reply was lost.
    #[inline(always)] // See the module.
    pub(super) fn attempt_release(
        self: &Arc<Self>,
        lease: ErasedLease,
        (asked_at, deadline): (HostInstant, HostInstant),
        lost_reply: Option<&Error>,
    ) -> ReleaseAttempt {
        let ask = LeaseAsk {
            lease,
            verb: LeaseVerb::Release,
            asked_at,
            deadline,
        };
        // A guard may be dropped while its thread panics; a second panic would abort.
        match run_caught(|| self.ask_about(ask)) {
            Some(reply) => Self::release_attempt(reply, lost_reply),
            None => ReleaseAttempt::Answered(Err(Error::new(
                ErrorKind::Unknown,
                "the backend panicked while it released; the store frees the lock after its ttl",
            ))),
        }
    }

    /// Returns what the reply to a release means.
    #[inline(always)]
    pub(super) fn release_attempt(reply: LeaseReply, lost_reply: Option<&Error>) -> ReleaseAttempt {
        let (lease, answer) = match reply {
            LeaseReply::Answered(lease, answer) => (lease, answer.map(released)),
            LeaseReply::UnderWay(entry) => return ReleaseAttempt::UnderWay(entry),
        };
        match (answer, lost_reply) {
            (Err(error), _) if is_no_answer(error.kind()) => ReleaseAttempt::NoAnswer(lease, error),
            (answer, lost_reply) => {
                ReleaseAttempt::Answered(answer.and_then(|found| found_after(found, lost_reply)))
            }
        }
    }

    /// Releases a lease that no guard gets, and returns the reason for that. The caller waits for the answer until
    /// the end of its request, and after a cancel as long as a drop does. Then the keeper's threads finish it.
    pub(super) fn give_up(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        lease: ErasedLease,
        reason: Error,
    ) -> Error {
        // The release may arrive late: it must not meet what a repeated request is granted.
        request.owner.set(None);
        let now = request.now();
        let limit = match request.is_cancelled() {
            true => DROP_LIMIT,
            false => RELEASE_LIMIT,
        };
        let ask = LeaseAsk {
            lease,
            verb: LeaseVerb::Release,
            asked_at: now,
            deadline: request.end().min(now + limit),
        };
        let (ttl, guard) = (request.ttl, None);
        match self.ask_in_batch(ask, None) {
            LeaseReply::Answered(_, Ok(_)) => {}
            LeaseReply::Answered(lease, Err(_)) => {
                self.release_unwanted(Unwanted { lease, guard }, ttl);
            }
            LeaseReply::UnderWay(entry) => {
                self.leave_lease(&entry, LeftLease::Release { ttl, guard });
            }
        }
        reason
    }
}

/// Returns the end of a release whose holder waits for it.
pub(super) fn release_deadline(hold: &Hold, now: HostInstant) -> HostInstant {
    now + RELEASE_LIMIT.min(hold.policy.ttl())
}

/// Returns whether a request that failed with this kind got no answer from the store.
pub(super) fn is_no_answer(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::PoolExhausted
    )
}

/// Returns the result of a release. After an attempt without a reply, a lock that is gone may have been released by that
/// attempt: then the result is unknown. `lost_reply` is the error of such an attempt.
pub(super) fn found_after(found: Released, lost_reply: Option<&Error>) -> Result<Released, Error> {
    match (found, lost_reply) {
        (Released::AlreadyLost, Some(lost)) => Err(unknown_release(lost)),
        (found, _) => Ok(found),
    }
}

/// Returns the error of a release that was repeated after a lost reply and found nothing.
fn unknown_release(lost_reply: &Error) -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the reply to the release did not come, and the lock was gone when it was asked for again: it was released, or it had been lost before; where that matters, have the data refuse smaller tokens",
    )
    .with_source(lost_reply.clone())
}
