//! Servers, and keepers on them.

use lockkeeper_core::{Config, Drivers, Error, LockKeeper};
use lockkeeper_mysql::MySqlDriver;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, Shared, suite};

use crate::checks::with_timeouts;

pub(crate) type Case = suite::Case<MySqlKind>;

/// Takes a server for a case that leaves users and variables as they are.
pub(crate) fn start(kind: MySqlKind) -> Shared<MySqlServer> {
    Shared::take(kind).unwrap()
}

/// Starts a server for a case that changes users or variables.
pub(crate) fn start_own(kind: MySqlKind) -> MySqlServer {
    MySqlServer::start(kind, &MySqlOptions::new().show_locks()).unwrap()
}

pub(crate) fn try_open(url: &str) -> Result<LockKeeper, Error> {
    Drivers::new()
        .with(MySqlDriver)
        .open(&Config::from_url(url)?)
}

/// Opens a keeper on a server, with more keys. Unless the keys set a time-out, it has time for a reply on a busy
/// machine.
pub(crate) fn open(server: &MySqlServer, keys: &str) -> LockKeeper {
    try_open(&with_timeouts(&format!("{}?{keys}", server.url()))).unwrap()
}

/// Returns how many sessions wait for a name.
pub(crate) fn waiters(server: &MySqlServer) -> usize {
    let sessions = server.sessions().unwrap();
    sessions.iter().filter(|it| it.state == "User lock").count()
}
