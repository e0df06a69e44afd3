//! One call of the provider with several operations.

use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, AttemptRequest, Clock as _, ErasedLease, Error, Grant, HostInstant, LockName,
    LockProvider, Operation, ReleaseRequest, Released, RenewRequest, Renewal, SystemClock,
};

use crate::checks::WAIT_LIMIT;

pub(crate) type Answer = Result<Option<Grant<ErasedLease>>, Error>;

pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) fn deadline() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

/// Attempts of one ttl, releases, and renewals by [`TTL`] of one call, in this order.
#[derive(Default)]
pub(crate) struct Batch<'a> {
    pub(crate) tries: &'a [&'a str],
    pub(crate) releases: Vec<&'a mut ErasedLease>,
    pub(crate) renewals: Vec<&'a mut ErasedLease>,
}

pub(crate) type Answers = (
    Vec<Answer>,
    Vec<Result<Released, Error>>,
    Vec<Result<Renewal, Error>>,
);

impl Batch<'_> {
    pub(crate) fn run(self, provider: &dyn LockProvider, ttl: Duration) -> Answers {
        let names = self.tries.iter().map(|name| LockName::new(*name).unwrap());
        let names: Vec<_> = names.collect();
        let request = |name| AcquireRequest::attempt(name, ttl, &SystemClock);
        let requests: Vec<_> = names.iter().map(request).collect();
        let deadline = deadline();
        let tries = requests.iter().map(|request| {
            Operation::Acquire(AttemptRequest {
                request,
                deadline,
                answer: None,
            })
        });
        let releases = self
            .releases
            .into_iter()
            .map(|lease| Operation::Release(ReleaseRequest::new(lease, deadline)));
        let renewals = self.renewals.into_iter().map(|lease| {
            Operation::Renew(RenewRequest {
                lease,
                ttl: TTL,
                deadline,
                answer: None,
            })
        });
        let mut batch: Vec<_> = tries.chain(releases).chain(renewals).collect();
        provider.batch(&mut batch);
        let mut answers = Answers::default();
        for operation in batch {
            match operation {
                Operation::Acquire(it) => answers.0.push(it.answer.unwrap()),
                Operation::Release(it) => answers.1.push(it.answer.unwrap()),
                Operation::Renew(it) => answers.2.push(it.answer.unwrap()),
            }
        }
        answers
    }
}

/// Tries `new` in one batch with what is done to two leases that are lost. Returns the answer to the attempt.
pub(crate) fn try_beside_lost(
    provider: &dyn LockProvider,
    [released, renewed]: [&mut ErasedLease; 2],
) -> Answer {
    let batch = Batch {
        tries: &["new"],
        releases: vec![released],
        renewals: vec![renewed],
    };
    let (mut tried, released, renewed) = batch.run(provider, TTL);
    assert_eq!(*released[0].as_ref().unwrap(), Released::AlreadyLost);
    assert_eq!(*renewed[0].as_ref().unwrap(), Renewal::Lost);
    tried.remove(0)
}

/// Tries names in one batch.
pub(crate) fn tried(provider: &dyn LockProvider, tries: &[&str], ttl: Duration) -> Vec<Answer> {
    let batch = Batch {
        tries,
        ..Batch::default()
    };
    batch.run(provider, ttl).0
}

/// Takes names that are free in one batch.
pub(crate) fn taken<const N: usize>(
    provider: &dyn LockProvider,
    names: [&str; N],
) -> [ErasedLease; N] {
    let taken = tried(provider, &names, TTL).into_iter();
    let taken: Vec<_> = taken.map(|answer| answer.unwrap().unwrap().lease).collect();
    taken.try_into().unwrap()
}

/// Releases leases that last in one batch.
#[track_caller]
pub(crate) fn release<'a>(
    provider: &dyn LockProvider,
    leases: impl IntoIterator<Item = &'a mut ErasedLease>,
) {
    let batch = Batch {
        releases: leases.into_iter().collect(),
        ..Batch::default()
    };
    for released in batch.run(provider, TTL).1 {
        assert_eq!(released.unwrap(), Released::Done);
    }
}
