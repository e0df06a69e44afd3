//! Operations of a batch, and their answers. The suite of Redis includes this file.

use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Backend, Clock as _, Error, ErrorKind, Grant, HostInstant,
    LockName, Operation, ReleaseRequest, Released, RenewRequest, Renewal, SystemClock,
};

pub(crate) const TTL: Duration = Duration::from_secs(60);

/// A limit far longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn in_time() -> HostInstant {
    SystemClock.now() + LIMIT
}

pub(crate) fn names<const N: usize>(names: [&str; N]) -> [LockName; N] {
    names.map(|name| LockName::new(name).unwrap())
}

pub(crate) fn request(name: &LockName) -> AcquireRequest<'_> {
    AcquireRequest::attempt(name, TTL, &SystemClock)
}

pub(crate) fn attempt<'a, L>(request: &'a AcquireRequest<'a>) -> Operation<'a, L> {
    attempt_until(request, in_time())
}

pub(crate) fn attempt_until<'a, L>(
    request: &'a AcquireRequest<'a>,
    deadline: HostInstant,
) -> Operation<'a, L> {
    Operation::Acquire(AttemptRequest {
        request,
        deadline,
        answer: None,
    })
}

pub(crate) fn renew<L>(lease: &mut L) -> Operation<'_, L> {
    Operation::Renew(RenewRequest {
        lease,
        ttl: TTL,
        deadline: in_time(),
        answer: None,
    })
}

pub(crate) fn release<L>(lease: &mut L) -> Operation<'_, L> {
    Operation::Release(ReleaseRequest::new(lease, in_time()))
}

/// An answer without its lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    Granted,
    Busy,
    Renewed,
    Lost,
    Released,
    AlreadyLost,
    Failed(ErrorKind),
}

fn answer<T>(answer: Option<Result<T, Error>>, read: impl FnOnce(T) -> Answer) -> Answer {
    let answer = answer.unwrap();
    answer.map_or_else(|error| Answer::Failed(error.kind()), read)
}

/// Returns the answers, in order, and the grants among them.
pub(crate) fn run<B: Backend>(
    provider: &B,
    mut batch: Vec<Operation<'_, B::Lease>>,
) -> (Vec<Answer>, Vec<Grant<B::Lease>>) {
    provider.batch(&mut batch);
    let mut grants = Vec::new();
    let answers = batch.into_iter().map(|operation| match operation {
        Operation::Acquire(it) => answer(it.answer, |grant| match grant {
            Some(grant) => {
                grants.push(grant);
                Answer::Granted
            }
            None => Answer::Busy,
        }),
        Operation::Renew(it) => answer(it.answer, |found| match found {
            Renewal::Renewed => Answer::Renewed,
            Renewal::Lost => Answer::Lost,
        }),
        Operation::Release(it) => answer(it.answer, |found| match found {
            Released::Done => Answer::Released,
            Released::AlreadyLost => Answer::AlreadyLost,
        }),
    });
    (answers.collect(), grants)
}

/// Acquires each of the names, one by one.
pub(crate) fn acquire<B: Backend, const N: usize>(
    provider: &B,
    wanted: [&str; N],
) -> [B::Lease; N] {
    names(wanted).map(|name| provider.acquire(&request(&name)).unwrap().unwrap().lease)
}
