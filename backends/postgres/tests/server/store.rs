//! Servers, and keepers on them.

use std::net::SocketAddr;
use std::time::Duration;

use libtest_mimic::{Completion, Trial};
use lockkeeper_core::{
    AcquireRequest, Backend, Config, Drivers, Error, Grant, HostInstant, LockKeeper, LockName,
    Mode, ReleaseRequest, Released, SystemClock,
};
use lockkeeper_postgres::{PostgresDriver, PostgresOptions, PostgresProvider};
use lockkeeper_testkit::{PostgresKind, PostgresServer, Shared, suite};

use crate::checks::{REPLY_LIMIT, with_timeouts};

pub(crate) type Case = suite::Case<PostgresKind>;

/// Returns a case that runs on one kind of server, unless there is a reason to ignore it.
pub(crate) fn trial(name: &str, ignored: fn() -> Option<String>, case: fn()) -> Trial {
    Trial::ignorable_test(name, move || match ignored() {
        Some(reason) => Ok(Completion::ignored_with(reason)),
        None => {
            case();
            Ok(Completion::Completed)
        }
    })
}

/// Takes a server for a case that leaves users and settings as they are.
pub(crate) fn start(kind: PostgresKind) -> Shared<PostgresServer> {
    Shared::take(kind).unwrap()
}

/// Starts a server for a case that changes users or settings.
pub(crate) fn start_own(kind: PostgresKind) -> PostgresServer {
    PostgresServer::start(kind, &lockkeeper_testkit::PostgresOptions::new()).unwrap()
}

pub(crate) fn try_open(url: &str) -> Result<LockKeeper, Error> {
    Drivers::new()
        .with(PostgresDriver)
        .open(&Config::from_url(url)?)
}

/// Opens a keeper on a server, with more keys, and with [`REPLY_LIMIT`] where the keys do not say a time-out.
pub(crate) fn open(server: &PostgresServer, keys: &str) -> LockKeeper {
    try_open(&with_timeouts(&format!("{}?{keys}", server.url()))).unwrap()
}

/// Returns the session that holds the only lock of a server. A session has two shared locks of its own.
pub(crate) fn holder(server: &PostgresServer) -> String {
    server
        .value("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted")
        .unwrap()
}

/// A ttl that does not end within a case.
pub(crate) const TTL: Duration = Duration::from_secs(30);

pub(crate) type Lease = <PostgresProvider as Backend>::Lease;

/// Returns the options of a server's user at an address.
pub(crate) fn options(addr: SocketAddr) -> PostgresOptions {
    PostgresOptions::tcp(addr.ip().to_string(), addr.port())
        .user(PostgresServer::USER)
        .password(PostgresServer::PASSWORD)
        .database(PostgresServer::DATABASE)
        .response_timeout(REPLY_LIMIT)
        .connect_timeout(REPLY_LIMIT)
}

/// Opens a provider on a server.
pub(crate) fn provider(server: &PostgresServer, pool_size: u32) -> PostgresProvider {
    let options = options(server.addr()).pool_size(pool_size);
    PostgresProvider::open(&options, "shop").unwrap()
}

/// Makes one attempt at the name `seat:42`.
pub(crate) fn attempt(
    provider: &PostgresProvider,
    mode: Mode,
) -> Result<Option<Grant<Lease>>, Error> {
    let name = LockName::new("seat:42").unwrap();
    let request = AcquireRequest::attempt(&name, TTL, &SystemClock);
    provider.acquire(&request.with_mode(mode))
}

/// Returns a grant of the name `seat:42`, which is to be free.
pub(crate) fn granted(provider: &PostgresProvider, mode: Mode) -> Grant<Lease> {
    attempt(provider, mode)
        .unwrap()
        .expect("the name is free in this mode")
}

pub(crate) fn release(provider: &PostgresProvider, mut grant: Grant<Lease>) {
    let release = ReleaseRequest::new(&mut grant.lease, HostInstant::NEVER);
    let released = release.ask(|one| provider.batch(one));
    assert_eq!(released.unwrap(), Released::Done);
}

/// Returns the number of locks that are held or waited for, without those of each session.
pub(crate) fn locks(server: &PostgresServer) -> usize {
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1";
    server.value(locks).unwrap().parse().unwrap()
}
