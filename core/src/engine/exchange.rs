//! One call of a provider with several operations, each with an answer.

use std::time::Duration;

use crate::clock::{Clock, HostInstant};
use crate::contract::batch::{AttemptRequest, Operation, ReleaseRequest, RenewRequest};
use crate::contract::provider::{AcquireRequest, ErasedLease, Grant, Owner, Released, Renewal};
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::name::LockName;
use crate::sync::run_caught;

use super::Engine;

/// An attempt to acquire a name, without a wait.
pub(super) struct Attempt {
    pub(super) name: LockName,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) owner: Owner,
    pub(super) is_retry: bool,
    /// The end of the wait for the answer.
    pub(super) deadline: HostInstant,
}

impl Attempt {
    /// Returns the attempt of a request as it is now, with an end of its own.
    pub(super) fn of(request: &AcquireRequest<'_>, deadline: HostInstant) -> Self {
        Self {
            name: request.name.clone(),
            mode: request.mode,
            ttl: request.ttl,
            owner: request.owner(),
            is_retry: request.is_retry(),
            deadline,
        }
    }

    /// Returns the request of this attempt.
    pub(super) fn request<'a>(&'a self, clock: &'a dyn Clock) -> AcquireRequest<'a> {
        let request = AcquireRequest::attempt(&self.name, self.ttl, clock)
            .with_mode(self.mode)
            .ending_at(self.deadline);
        request.owner.set(Some(self.owner));
        request.is_retry.set(self.is_retry);
        request
    }
}

/// A renewal or a release. It owns the lease, since its caller may stop waiting.
pub(super) struct LeaseAsk {
    pub(super) lease: ErasedLease,
    pub(super) verb: LeaseVerb,
    /// When its caller began to ask.
    pub(super) asked_at: HostInstant,
    /// The end of the wait for the answer.
    pub(super) deadline: HostInstant,
}

#[derive(Clone, Copy)]
pub(super) enum LeaseVerb {
    Renew { ttl: Duration },
    Release,
}

pub(super) type AttemptAnswer = Result<Option<Grant<ErasedLease>>, Error>;

/// Whether the lease was still held.
pub(super) type LeaseAnswer = Result<bool, Error>;

/// An attempt and its answer.
pub(super) type Attempted = (Attempt, AttemptAnswer);

/// A request about a lease and its answer.
pub(super) type AskedAbout = (LeaseAsk, LeaseAnswer);

impl Engine {
    /// Asks the provider for all of it, about one part of the store, in one call. Notes what the answers say of the store,
    /// and returns each request with its answer.
    pub(super) fn exchange(
        &self,
        part: usize,
        attempts: Vec<Attempt>,
        mut asks: Vec<LeaseAsk>,
    ) -> (Vec<Attempted>, Vec<AskedAbout>) {
        let asked_at = self.clock.now();
        let (granted, held) = self.call(&attempts, &mut asks);
        let attempts: Vec<_> = attempts.into_iter().zip(granted).collect();
        let asks: Vec<_> = asks.into_iter().zip(held).collect();
        self.note_batch((part, asked_at), &attempts, &asks);
        (attempts, asks)
    }

    /// Returns the answers in the order of the requests.
    fn call(
        &self,
        attempts: &[Attempt],
        asks: &mut [LeaseAsk],
    ) -> (Vec<AttemptAnswer>, Vec<LeaseAnswer>) {
        let requests = attempts.iter().map(|it| it.request(&*self.clock));
        let requests: Vec<_> = requests.collect();
        let attempts = attempts.iter().zip(&requests).map(|(attempt, request)| {
            Operation::Acquire(AttemptRequest {
                request,
                deadline: attempt.deadline,
                answer: None,
            })
        });
        let asks = asks.iter_mut().map(|ask| match ask.verb {
            LeaseVerb::Renew { ttl } => Operation::Renew(RenewRequest {
                lease: &mut ask.lease,
                ttl,
                deadline: ask.deadline,
                answer: None,
            }),
            LeaseVerb::Release => Operation::Release(ReleaseRequest {
                lease: &mut ask.lease,
                deadline: ask.deadline,
                answer: None,
            }),
        });
        let mut batch: Vec<_> = attempts.chain(asks).collect();
        // The keeper's own threads come through here, which a backend's panic must not end.
        let no_answer = match run_caught(|| self.provider.batch(&mut batch)) {
            Some(()) => "the backend gave no answer",
            None => "the backend panicked while it was asked",
        };
        let no_answer = || Error::new(ErrorKind::Unknown, no_answer);
        let (mut granted, mut held) = (Vec::new(), Vec::new());
        for operation in batch {
            match operation {
                Operation::Acquire(it) => {
                    granted.push(it.answer.unwrap_or_else(|| Err(no_answer())));
                }
                Operation::Renew(it) => {
                    let answer = it.answer.unwrap_or_else(|| Err(no_answer()));
                    held.push(answer.map(|found| found == Renewal::Renewed));
                }
                Operation::Release(it) => {
                    let answer = it.answer.unwrap_or_else(|| Err(no_answer()));
                    held.push(answer.map(|found| found == Released::Done));
                }
            }
        }
        (granted, held)
    }
}
