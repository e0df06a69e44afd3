//! Single operations for a batch, and their answers.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::backend::{
    AcquireRequest, AttemptRequest, Backend, Grant, Operation, ReleaseRequest, RenewRequest,
    Renewal, StoreInfo,
};
use lockkeeper::backends::redis::{RedisOptions, RedisProvider};
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{Error, ErrorKind, LockName, Released};
use lockkeeper_testkit::RedisServer;

use crate::common::WAIT_LIMIT;

pub(super) type Lease = <RedisProvider as Backend>::Lease;

pub(super) const TTL: Duration = Duration::from_secs(60);

pub(super) fn open(
    server: &RedisServer,
    change: impl FnOnce(RedisOptions) -> RedisOptions,
) -> RedisProvider {
    open_via(server.addr(), change)
}

pub(super) fn open_via(
    addr: SocketAddr,
    change: impl FnOnce(RedisOptions) -> RedisOptions,
) -> RedisProvider {
    // For a busy machine.
    let long = Duration::from_secs(5);
    let options = RedisOptions::tcp(addr.ip().to_string(), addr.port());
    let options = options.connect_timeout(long).response_timeout(long);
    RedisProvider::open(&change(options), "default").unwrap()
}

pub(super) fn in_time() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

pub(super) fn names<const N: usize>(names: [&str; N]) -> [LockName; N] {
    names.map(|name| LockName::new(name).unwrap())
}

pub(super) fn request(name: &LockName) -> AcquireRequest<'_> {
    AcquireRequest::attempt(name, TTL, &SystemClock)
}

pub(super) fn attempt<'a>(request: &'a AcquireRequest<'a>) -> Operation<'a, Lease> {
    attempt_until(request, in_time())
}

pub(super) fn attempt_until<'a>(
    request: &'a AcquireRequest<'a>,
    deadline: HostInstant,
) -> Operation<'a, Lease> {
    Operation::Acquire(AttemptRequest {
        request,
        deadline,
        answer: None,
    })
}

pub(super) fn renew(lease: &mut Lease) -> Operation<'_, Lease> {
    Operation::Renew(RenewRequest {
        lease,
        ttl: TTL,
        deadline: in_time(),
        answer: None,
    })
}

pub(super) fn release(lease: &mut Lease) -> Operation<'_, Lease> {
    Operation::Release(ReleaseRequest::new(lease, in_time()))
}

/// An answer without its lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
    Granted,
    Busy,
    Renewed,
    Lost,
    Released,
    AlreadyLost,
    Failed(ErrorKind),
}

fn answer<T>(answer: Option<Result<T, Error>>, read: impl FnOnce(T) -> Answer) -> Answer {
    let answer = answer.expect("every operation has an answer");
    answer.map_or_else(|error| Answer::Failed(error.kind()), read)
}

/// Returns the answers, in order, and the grants among them.
pub(super) fn run(
    provider: &RedisProvider,
    mut batch: Vec<Operation<'_, Lease>>,
) -> (Vec<Answer>, Vec<Grant<Lease>>) {
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

/// Opens a provider whose scripts the server has.
pub(super) fn open_with_scripts(
    addr: SocketAddr,
    change: impl FnOnce(RedisOptions) -> RedisOptions,
) -> RedisProvider {
    let provider = open_via(addr, change);
    let [mut lease] = acquire(&provider, ["s"]);
    let (answers, _) = run(&provider, vec![renew(&mut lease)]);
    assert_eq!(answers, [Answer::Renewed]);
    release_all(&provider, [lease]);
    provider
}

/// Acquires each of the names.
pub(super) fn acquire<const N: usize>(provider: &RedisProvider, wanted: [&str; N]) -> [Lease; N] {
    wanted.map(|name| {
        let [name] = names([name]);
        provider.acquire(&request(&name)).unwrap().unwrap().lease
    })
}

/// Releases leases that are held, one by one.
#[track_caller]
pub(super) fn release_all(provider: &RedisProvider, leases: impl IntoIterator<Item = Lease>) {
    for mut lease in leases {
        // The provider's clock may be another one than the host's, and bounds the release itself.
        let release = ReleaseRequest::new(&mut lease, HostInstant::NEVER);
        let released = release.ask(|one| provider.batch(one));
        assert_eq!(released.unwrap(), Released::Done);
    }
}

/// Ends a lease without its owner.
pub(super) fn end(server: &RedisServer, name: &str) {
    let key = format!("lockkeeper:{{default:{name}}}");
    assert_eq!(server.command(&["DEL", &key]).unwrap().int(), Some(1));
}

pub(super) fn sent(provider: &RedisProvider) -> u64 {
    provider.usage().unwrap().commands
}
