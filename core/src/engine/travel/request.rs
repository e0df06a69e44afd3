//! Requests and answers as values, and the one call of the provider that carries them out.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, HostInstant};
use crate::contract::batch::{
    AttemptRequest, Operation, ReleaseRequest, RenewRequest, SentRelease, no_answer,
};
use crate::contract::provider::{AcquireRequest, ErasedLease, Grant, Owner, Released, Renewal};
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::name::LockName;
use crate::sync::run_caught;

use super::super::Engine;
use super::super::hold::Hold;
use super::super::hold::acquired::UnreleasedGuard;
use super::super::hold::lease::Asked;
use super::super::key::Key;

/// What is asked of one part of the store.
pub(crate) enum Request {
    Attempt(Attempt),
    Lease(LeaseRequest),
}

/// An attempt to acquire a name, without a wait.
pub(crate) struct Attempt {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) owner: Owner,
    pub(crate) is_retry: bool,
    pub(crate) is_resume: bool,
    /// The end of the wait for the answer.
    pub(crate) deadline: HostInstant,
}

/// A renewal or a release. It owns the lease, since its caller may stop waiting.
pub(crate) struct LeaseRequest {
    pub(crate) lease: ErasedLease,
    pub(crate) verb: LeaseVerb,
    /// The end of the wait for the answer.
    pub(crate) deadline: HostInstant,
}

pub(crate) enum LeaseVerb {
    Renew {
        ttl: Duration,
    },
    Release,
    /// The release was sent before, and only its reply is to be read.
    Sent {
        /// `None` once that was tried.
        sent: Option<SentRelease>,
        sent_at: HostInstant,
        /// The hash of the name that it frees.
        name: u64,
    },
}

/// The answer to a request, and the lease that it was about.
pub(crate) struct Answer {
    /// `None` if the request was an attempt.
    pub(crate) lease: Option<ErasedLease>,
    pub(crate) found: Result<Found, Error>,
}

/// What the store has answered.
pub(crate) enum Found {
    /// The attempt was granted.
    Grant(Grant<ErasedLease>),
    /// The lease was still held.
    Held,
    /// Another holder has the name, or the lease was not held any more.
    NotHeld,
    /// Nothing: the backend has panicked.
    Panic,
}

/// What is to be done with an answer that no caller waits for.
pub(crate) enum Settlement {
    /// What an attempt was granted, or a lease that it was to confirm, goes back. The store ends it after this ttl.
    GiveBack(Duration),
    /// A lease that was resumed stays, for another resumption.
    Leave,
    /// The lease comes back to its hold.
    Renewal { hold: Arc<Hold>, asked: Asked },
    /// A release is repeated if the store did not answer.
    Release(Release),
}

/// The longest time for which one request of a release waits for the store.
pub(crate) const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// A release that no caller waits for.
pub(crate) struct Release {
    pub(crate) part: usize,
    /// When the store has ended the lease by itself.
    pub(crate) until: HostInstant,
    /// The guard that had the lease, if there was one.
    pub(crate) guard: Option<Box<UnreleasedGuard>>,
    /// The error of the first request whose reply was lost.
    pub(crate) lost_reply: Option<Error>,
    /// Whether it was sent and not waited for: requests for its name wait in the queue of its part until it is settled.
    pub(crate) is_sent: bool,
}

pub(crate) type AttemptAnswer = Result<Option<Grant<ErasedLease>>, Error>;

impl Attempt {
    /// Returns the attempt of a request as it is now, with an end of its own.
    pub(crate) fn of(request: &AcquireRequest<'_>, deadline: HostInstant) -> Self {
        Self {
            name: request.name.clone(),
            mode: request.mode,
            ttl: request.ttl,
            owner: request.owner(),
            is_retry: request.is_retry(),
            is_resume: request.is_resume(),
            deadline,
        }
    }

    /// Returns the request of this attempt.
    pub(crate) fn request<'a>(&'a self, clock: &'a dyn Clock) -> AcquireRequest<'a> {
        let mut request = AcquireRequest::attempt(&self.name, self.ttl, clock)
            .with_mode(self.mode)
            .ending_at(self.deadline);
        request.is_resume = self.is_resume;
        request.owner.set(Some(self.owner));
        request.is_retry.set(self.is_retry);
        request
    }

    pub(crate) fn key(&self) -> Key<'_> {
        Key::new(&self.name, self.mode)
    }
}

impl LeaseRequest {
    pub(crate) fn release(lease: ErasedLease, deadline: HostInstant) -> Self {
        Self {
            lease,
            verb: LeaseVerb::Release,
            deadline,
        }
    }

    pub(crate) fn renew(lease: ErasedLease, ttl: Duration, deadline: HostInstant) -> Self {
        Self {
            lease,
            verb: LeaseVerb::Renew { ttl },
            deadline,
        }
    }
}

impl Request {
    /// Returns the hash of the name that an attempt asks for.
    pub(crate) fn name(&self) -> Option<u64> {
        match self {
            Self::Attempt(attempt) => Some(attempt.key().id()),
            Self::Lease(_) => None,
        }
    }

    /// Returns the name whose release was sent before, and when, if this reads the reply.
    fn sent(&self) -> Option<(u64, HostInstant)> {
        match self {
            Self::Lease(LeaseRequest {
                verb: LeaseVerb::Sent { name, sent_at, .. },
                ..
            }) => Some((*name, *sent_at)),
            _ => None,
        }
    }

    /// Returns when the store was asked, if that began at `began`: a release may have been sent before.
    pub(crate) fn asked_at(&self, began: HostInstant) -> HostInstant {
        self.sent().map_or(began, |(_, sent_at)| sent_at)
    }

    /// Returns the end of the wait for the answer.
    pub(crate) fn deadline(&self) -> HostInstant {
        match self {
            Self::Attempt(attempt) => attempt.deadline,
            Self::Lease(request) => request.deadline,
        }
    }

    /// Bounds the wait for the answer.
    pub(crate) fn bound(&mut self, until: HostInstant) {
        let deadline = match self {
            Self::Attempt(attempt) => &mut attempt.deadline,
            Self::Lease(request) => &mut request.deadline,
        };
        *deadline = until.min(*deadline);
    }

    /// Returns the answer to this request.
    pub(crate) fn answered(self, found: Result<Found, Error>) -> Answer {
        let lease = match self {
            Self::Attempt(_) => None,
            Self::Lease(request) => Some(request.lease),
        };
        Answer { lease, found }
    }
}

impl Answer {
    /// Returns what the answer to an attempt means.
    pub(crate) fn granted(self) -> AttemptAnswer {
        match self.found? {
            Found::Grant(grant) => Ok(Some(grant)),
            Found::Held | Found::NotHeld => Ok(None),
            Found::Panic => Err(panicked("asked")),
        }
    }

    /// Returns the lease of a renewal, and what the answer means.
    pub(crate) fn renewed(self) -> (Option<ErasedLease>, Result<Renewal, Error>) {
        let answer = self.found.and_then(|found| match found {
            Found::Held => Ok(Renewal::Renewed),
            Found::Grant(_) | Found::NotHeld => Ok(Renewal::Lost),
            Found::Panic => Err(panicked("renewed the lease")),
        });
        (self.lease, answer)
    }

    /// Returns the lease of a release, and what the answer means. Without the lease the release is not repeated.
    pub(crate) fn released(self) -> (Option<ErasedLease>, Result<Released, Error>) {
        match self.found {
            Ok(Found::Held) => (self.lease, Ok(Released::Done)),
            Ok(Found::Grant(_) | Found::NotHeld) => (self.lease, Ok(Released::AlreadyLost)),
            Ok(Found::Panic) => (None, Err(panicked(RELEASED))),
            Err(error) => (self.lease, Err(error)),
        }
    }
}

impl Release {
    /// Makes the release of a lease that the store ends by itself at `until`.
    pub(crate) fn new(
        part: usize,
        until: HostInstant,
        guard: Option<Box<UnreleasedGuard>>,
    ) -> Self {
        Self {
            part,
            until,
            guard,
            lost_reply: None,
            is_sent: false,
        }
    }

    /// Returns the end of one request of the release, which begins at `now`.
    pub(crate) fn end_from(&self, now: HostInstant) -> HostInstant {
        self.until.min(now + RELEASE_LIMIT)
    }
}

/// What a backend did that panicked.
pub(crate) const RELEASED: &str = "released; the store frees the lock after its ttl";

/// Returns the error of a backend's panic.
pub(crate) fn panicked(what: &str) -> Error {
    let text = format!("the backend panicked while it {what}");
    Error::new(ErrorKind::Unknown, text)
}

/// Returns whether a request that failed with this kind got no answer from the store.
pub(crate) fn is_no_answer(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::PoolExhausted
    )
}

/// A request, ready to be an operation of the provider.
enum Prepared<'a> {
    Attempt(AcquireRequest<'a>),
    Lease(&'a mut LeaseRequest),
}

impl<'a> Prepared<'a> {
    fn of(request: &'a mut Request, clock: &'a dyn Clock) -> Self {
        match request {
            Request::Attempt(attempt) => Self::Attempt(attempt.request(clock)),
            Request::Lease(request) => Self::Lease(request),
        }
    }

    fn operation(&mut self) -> Operation<'_, ErasedLease> {
        let request = match self {
            Self::Attempt(request) => {
                return Operation::Acquire(AttemptRequest {
                    request,
                    deadline: request.end,
                    answer: None,
                });
            }
            Self::Lease(request) => request,
        };
        let (lease, deadline) = (&mut request.lease, request.deadline);
        match &mut request.verb {
            LeaseVerb::Renew { ttl } => Operation::Renew(RenewRequest::new(lease, *ttl, deadline)),
            LeaseVerb::Release => Operation::Release(ReleaseRequest::new(lease, deadline)),
            LeaseVerb::Sent { sent, .. } => Operation::Release(ReleaseRequest {
                sent: sent.take(),
                ..ReleaseRequest::new(lease, deadline)
            }),
        }
    }
}

impl Engine {
    /// Asks the provider for one thing in one call, notes what the answer says of the store, and returns it.
    pub(crate) fn exchange(&self, part: usize, mut request: Request) -> Answer {
        let asked_at = self.clock.now();
        let mut prepared = Prepared::of(&mut request, &*self.clock);
        let mut batch = [prepared.operation()];
        // A panic ends neither the keeper's own threads nor the thread that drops a guard.
        let is_done = run_caught(|| self.provider.batch(&mut batch)).is_some();
        let [operation] = batch;
        let found = found(operation, part, is_done);
        let (request_of, found_of) = (slice::from_ref(&request), slice::from_ref(&found));
        self.note_batch((part, asked_at), request_of, found_of);
        request.answered(found)
    }

    /// Asks the provider for all of it in one call, about one part of the store, and returns the answers in the order of
    /// the requests.
    pub(crate) fn exchange_all(&self, part: usize, mut requests: Vec<Request>) -> Vec<Answer> {
        // The holders may have taken all leases of a renewal meanwhile.
        if requests.is_empty() {
            return Vec::new();
        }
        let asked_at = self.clock.now();
        let prepared = requests.iter_mut().map(|it| Prepared::of(it, &*self.clock));
        let mut prepared: Vec<_> = prepared.collect();
        let mut batch: Vec<_> = prepared.iter_mut().map(Prepared::operation).collect();
        let is_done = run_caught(|| self.provider.batch(&mut batch)).is_some();
        let found = batch.into_iter().map(|it| found(it, part, is_done));
        let mut found: Vec<_> = found.collect();
        self.note_batch((part, asked_at), &requests, &found);
        if let (Some(sent), Some(Err(error))) = (requests.first(), found.first())
            && is_no_answer(error.kind())
            && let Some((name, _)) = sent.sent()
        {
            // The holder of this name that the store has seen may be this process.
            let behind = requests.iter().zip(&mut found);
            let behind = behind.filter(|(request, _)| request.name() == Some(name));
            for (_, found) in behind.filter(|(_, found)| matches!(found, Ok(Found::NotHeld))) {
                let text = "the release of the lock by this process got no reply yet, and is repeated; try again later";
                *found = Err(Error::name_unavailable(text));
            }
        }
        let all = requests.into_iter().zip(found);
        all.map(|(request, found)| request.answered(found))
            .collect()
    }
}

/// Returns the answer of an operation. A grant gets its part of the store.
fn found(
    operation: Operation<'_, ErasedLease>,
    part: usize,
    is_done: bool,
) -> Result<Found, Error> {
    let held = |is_held| match is_held {
        true => Found::Held,
        false => Found::NotHeld,
    };
    let answer = match operation {
        Operation::Acquire(it) => it.answer.map(|answer| {
            answer.map(|granted| match granted {
                Some(mut grant) => {
                    grant.lease.part = part;
                    Found::Grant(grant)
                }
                None => Found::NotHeld,
            })
        }),
        Operation::Renew(it) => it
            .answer
            .map(|answer| answer.map(|found| held(found == Renewal::Renewed))),
        Operation::Release(it) => it
            .answer
            .map(|answer| answer.map(|found| held(found == Released::Done))),
    };
    answer.unwrap_or_else(|| match is_done {
        true => Err(no_answer()),
        false => Ok(Found::Panic),
    })
}
