//! Providers, and leases without a keeper.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::Released;
use lockkeeper::backend::{Backend, ReleaseRequest, StoreInfo};
use lockkeeper::backends::redis::{RedisOptions, RedisProvider};
use lockkeeper::clock::HostInstant;
use lockkeeper_testkit::RedisServer;

pub(super) use super::batched::{
    Answer, TTL, acquire, attempt, attempt_until, in_time, names, release, renew, request, run,
};

pub(super) type Lease = <RedisProvider as Backend>::Lease;

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
