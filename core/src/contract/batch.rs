//! Operations that are sent to a store together.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, Grant, Released, Renewal};
use crate::error::{Error, ErrorKind};

/// One operation of a [`Backend::batch`](crate::Backend::batch): the request, and a field for its
/// answer. An operation without an answer counts as unknown.
#[derive(Debug)]
pub enum Operation<'a, L> {
    /// Tries to acquire a name, without a wait.
    Acquire(AttemptRequest<'a, L>),
    /// Renews a lease.
    Renew(RenewRequest<'a, L>),
    /// Releases a lease.
    Release(ReleaseRequest<'a, L>),
}

/// A single attempt to acquire a name.
pub struct AttemptRequest<'a, L> {
    /// The request. It has no [deadline](AcquireRequest::deadline), since the attempt does not wait.
    pub request: &'a AcquireRequest<'a>,
    /// The end of the wait for the answer. A store that can compare it with its clock does not grant
    /// the name later. The engine releases a grant that comes later.
    pub deadline: HostInstant,
    /// The answer, as that of [`Backend::acquire`](crate::Backend::acquire).
    pub answer: Option<Result<Option<Grant<L>>, Error>>,
}

/// A renewal: extends a lease to `ttl` from now, if the store still keeps it.
#[derive(Debug)]
pub struct RenewRequest<'a, L> {
    /// The lease to renew.
    pub lease: &'a mut L,
    /// How long the lease lives from now on.
    pub ttl: Duration,
    /// The end of the wait for the answer.
    pub deadline: HostInstant,
    /// The answer. [`Renewal::Lost`] only if the store says so: the lease has expired, or another lease has its place.
    /// An expired lease is not renewed, even if the name is free. After an error, the outcome is unknown: the engine
    /// moves no deadline, and tries again while time is left.
    pub answer: Option<Result<Renewal, Error>>,
}

/// A release: frees the name if this lease still holds it, and wakes one waiter. Otherwise it does nothing.
#[derive(Debug)]
pub struct ReleaseRequest<'a, L> {
    /// The lease to release.
    pub lease: &'a mut L,
    /// The release, if [`Backend::send_release`](crate::Backend::send_release) has sent it before. Then only its reply
    /// is to be read, and it is the first operation of its batch: see [`Backend::batch`](crate::Backend::batch).
    pub sent: Option<SentRelease>,
    /// The end of the wait for the answer.
    pub deadline: HostInstant,
    /// The answer. After an error, the outcome is unknown: the engine asks again while time is left, and the store
    /// frees the name by itself after the ttl.
    pub answer: Option<Result<Released, Error>>,
}

impl<'a, L> RenewRequest<'a, L> {
    /// Makes the request of a renewal.
    pub fn new(lease: &'a mut L, ttl: Duration, deadline: HostInstant) -> Self {
        Self {
            lease,
            ttl,
            deadline,
            answer: None,
        }
    }

    /// Makes the request by a batch of one: a [`Backend::batch`](crate::Backend::batch).
    ///
    /// # Errors
    /// As [`answer`](Self::answer). [`ErrorKind::Unknown`] if there is none.
    pub fn ask(self, batch: impl FnOnce(&mut [Operation<'a, L>])) -> Result<Renewal, Error> {
        let mut one = [Operation::Renew(self)];
        batch(&mut one);
        let [Operation::Renew(Self { answer, .. })] = one else {
            return Err(no_answer());
        };
        answer.unwrap_or_else(|| Err(no_answer()))
    }
}

impl<'a, L> ReleaseRequest<'a, L> {
    /// Makes the request of a release that was not sent before.
    pub fn new(lease: &'a mut L, deadline: HostInstant) -> Self {
        Self {
            lease,
            sent: None,
            deadline,
            answer: None,
        }
    }

    /// Makes the request by a batch of one: a [`Backend::batch`](crate::Backend::batch).
    ///
    /// # Errors
    /// As [`answer`](Self::answer). [`ErrorKind::Unknown`] if there is none.
    pub fn ask(self, batch: impl FnOnce(&mut [Operation<'a, L>])) -> Result<Released, Error> {
        let mut one = [Operation::Release(self)];
        batch(&mut one);
        let [Operation::Release(Self { answer, .. })] = one else {
            return Err(no_answer());
        };
        answer.unwrap_or_else(|| Err(no_answer()))
    }
}

/// What came of [`Backend::send_release`](crate::Backend::send_release).
#[derive(Debug)]
pub enum ReleaseDispatch {
    /// The store has answered already: it is in the process, or takes microseconds.
    Answered(Result<Released, Error>),
    /// The release is written into a connection, and its reply is to be read later.
    Sent(SentRelease),
    /// No reply is to be read: nothing was sent, or the store sends it by itself. A thread of the keeper releases the lease.
    NotSent,
}

/// A release that was written and whose reply was not read yet: what the store needs to read it, such as the connection.
///
/// The engine gives it back as [`ReleaseRequest::sent`]. A store must be able to drop it at any time: the reply is lost
/// then, and so is the connection.
pub struct SentRelease(Box<dyn Any + Send>);

impl SentRelease {
    /// Keeps what the store needs to read the reply.
    pub fn new(connection: impl Any + Send) -> Self {
        Self(Box::new(connection))
    }

    /// Returns what the store has kept. `None` if it is of another type.
    pub fn into_inner<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|kept| *kept)
    }
}

impl fmt::Debug for SentRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentRelease").finish_non_exhaustive()
    }
}

impl<L> fmt::Debug for AttemptRequest<'_, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptRequest")
            .field("request", &self.request)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl<L> Operation<'_, L> {
    /// Returns the end of the wait for the answer.
    pub fn deadline(&self) -> HostInstant {
        match self {
            Operation::Acquire(attempt) => attempt.deadline,
            Operation::Renew(renewal) => renewal.deadline,
            Operation::Release(release) => release.deadline,
        }
    }

    /// Returns whether the operation has its answer.
    pub fn is_answered(&self) -> bool {
        match self {
            Operation::Acquire(attempt) => attempt.answer.is_some(),
            Operation::Renew(renewal) => renewal.answer.is_some(),
            Operation::Release(release) => release.answer.is_some(),
        }
    }

    /// Takes what [`Backend::send_release`](crate::Backend::send_release) has returned, if this is the release that it
    /// has sent.
    pub fn take_sent(&mut self) -> Option<SentRelease> {
        match self {
            Operation::Release(release) => release.sent.take(),
            Operation::Acquire(_) | Operation::Renew(_) => None,
        }
    }

    /// Answers with an error, such as that of the connection that carried the batch.
    pub fn fail(&mut self, error: Error) {
        match self {
            Operation::Acquire(attempt) => attempt.answer = Some(Err(error)),
            Operation::Renew(renewal) => renewal.answer = Some(Err(error)),
            Operation::Release(release) => release.answer = Some(Err(error)),
        }
    }
}

/// Returns the error of an operation that its batch has left without an answer.
pub(crate) fn no_answer() -> Error {
    Error::new(ErrorKind::Unknown, "the backend gave no answer")
}
