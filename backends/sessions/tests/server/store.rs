//! Servers of all kinds, and keepers and providers on them. Lock names are in the namespace `default`.

use std::any::Any;
use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Config, Drivers, Error, LockKeeper, LockProvider};
use lockkeeper_mysql::{Conn, MySqlDriver, MySqlOptions, MySqlProvider, Opts};
use lockkeeper_postgres::{PostgresDriver, PostgresOptions, PostgresProvider, Transport};
use lockkeeper_testkit::{
    MySqlKind, MySqlServer, PostgresKind, PostgresServer, Shared, StoreKind, TestServer, suite,
    until,
};

use crate::checks::{REPLY_LIMIT, WAIT_LIMIT, with_timeouts};

pub(crate) type Case = suite::Case<StoreKind>;

/// Returns all versions of the servers whose locks belong to a session. Their cases end statements and sessions.
pub(crate) fn kinds() -> impl Iterator<Item = StoreKind> {
    let mysql = MySqlKind::ALL.map(StoreKind::MySql);
    let postgres = PostgresKind::ALL.map(StoreKind::Postgres);
    mysql.into_iter().chain(postgres)
}

/// Takes a server for a case that leaves users and settings as they are.
pub(crate) fn start(kind: StoreKind) -> Shared {
    kind.share().unwrap()
}

/// Starts a server that speaks TLS. Returns the file with its authority, too.
pub(crate) fn start_with_tls(kind: StoreKind) -> (Arc<dyn TestServer>, PathBuf) {
    match kind {
        StoreKind::MySql(kind) => {
            let options = lockkeeper_testkit::MySqlOptions::new().show_locks().tls();
            let server = MySqlServer::start(kind, &options).unwrap();
            let authority = server.certificates().unwrap().authority.clone();
            (Arc::new(server), authority)
        }
        StoreKind::Postgres(kind) => {
            let options = lockkeeper_testkit::PostgresOptions::new().tls();
            let server = PostgresServer::start(kind, &options).unwrap();
            let authority = server.certificates().unwrap().authority.clone();
            (Arc::new(server), authority)
        }
        kind => panic!("{kind} has no sessions"),
    }
}

pub(crate) fn try_open(url: &str) -> Result<LockKeeper, Error> {
    let drivers = Drivers::new().with(MySqlDriver).with(PostgresDriver);
    drivers.open(&Config::from_url(url)?)
}

/// Opens a keeper on a server, with more keys, and with [`REPLY_LIMIT`] where the keys do not say a time-out.
pub(crate) fn open(server: &dyn TestServer, keys: &str) -> LockKeeper {
    try_open(&with_timeouts(&format!("{}{keys}", server.url()))).unwrap()
}

/// Opens a provider on a server. With a pool of two, names share a session from the second one on.
pub(crate) fn provider(
    kind: StoreKind,
    server: &dyn TestServer,
    pool_size: u32,
) -> Arc<dyn LockProvider> {
    let addr = server.single_addr().unwrap();
    let response_timeout = REPLY_LIMIT;
    let via = Via {
        pool_size,
        response_timeout,
    };
    provider_by(kind, via, move || addr).unwrap()
}

/// The options of a provider.
#[derive(Clone, Copy)]
pub(crate) struct Via {
    pub(crate) pool_size: u32,
    pub(crate) response_timeout: Duration,
}

/// Opens a provider whose connections a function of the application makes, to the server at the address that `choose`
/// returns.
pub(crate) fn provider_by(
    kind: StoreKind,
    via: Via,
    choose: impl Fn() -> SocketAddr + Send + Sync + 'static,
) -> Result<Arc<dyn LockProvider>, Error> {
    match kind {
        StoreKind::MySql(_) => {
            let (user, password) = (MySqlServer::USER, MySqlServer::PASSWORD);
            let connect = move |_| {
                let url = format!(
                    "mysql://{user}:{password}@{}/?prefer_socket=false",
                    choose()
                );
                Conn::new(Opts::from_url(&url).unwrap())
            };
            let options = MySqlOptions::tcp("db.invalid", 1)
                .pool_size(via.pool_size)
                .connect_timeout(WAIT_LIMIT)
                .response_timeout(via.response_timeout)
                .connect_with(connect);
            Ok(Arc::new(MySqlProvider::open(&options, "default")?))
        }
        _ => {
            let connect = move |_| TcpStream::connect(choose()).map(Transport::new);
            let options = PostgresOptions::tcp("db.invalid", 1)
                .user(PostgresServer::USER)
                .password(PostgresServer::PASSWORD)
                .database(PostgresServer::DATABASE)
                .pool_size(via.pool_size)
                .connect_timeout(WAIT_LIMIT)
                .response_timeout(via.response_timeout)
                .connect_with(connect);
            Ok(Arc::new(PostgresProvider::open(&options, "default")?))
        }
    }
}

pub(crate) fn keeper(provider: &Arc<dyn LockProvider>) -> LockKeeper {
    LockKeeper::builder(Arc::clone(provider)).build().unwrap()
}

/// Returns how many connections keepers have open.
pub(crate) fn connections(server: &dyn TestServer) -> usize {
    server.connections().unwrap().len()
}

/// Returns the sessions that hold any of the names.
pub(crate) fn holders(server: &dyn TestServer, names: &[&str]) -> BTreeSet<u64> {
    server.holding_sessions("default", names).unwrap()
}

/// Returns what cancels the statements of a session, often and quickly.
pub(crate) fn canceller(server: &dyn TestServer, session: u64) -> Box<dyn FnMut() + '_> {
    let server: &dyn Any = server;
    if let Some(server) = server.downcast_ref::<MySqlServer>() {
        let mut client = server.client().unwrap();
        let cancel = format!("KILL QUERY {session}");
        return Box::new(move || client.execute(&cancel).unwrap());
    }
    let server = server.downcast_ref::<PostgresServer>().unwrap();
    let series = "generate_series(1, 2000)";
    let cancel = format!("SELECT count(pg_cancel_backend({session})) FROM {series}");
    Box::new(move || server.execute(&cancel).unwrap())
}

/// Returns how many locks are held, and how many callers wait for one.
pub(crate) fn leftovers(server: &dyn TestServer) -> usize {
    server.leftovers().unwrap().len()
}

/// Waits until so many callers wait in the server for any of the names.
#[track_caller]
pub(crate) fn until_waiting(server: &dyn TestServer, names: &[&str], count: usize) {
    until("the callers wait in the server", || {
        let waiters = names.iter().map(|name| server.waiters("default", name));
        waiters.map(Result::unwrap).sum::<usize>() == count
    });
}
