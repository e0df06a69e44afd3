//! MySQL and MariaDB servers, keepers on them, and their sessions.

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{
    MySqlKind, MySqlOptions, MySqlServer, MySqlSession, Shared, TestServer as _, until,
};

use crate::common::{opened, with_reply_time};

pub(super) type Server = Shared<MySqlServer>;

/// Takes a server for a case that changes nothing but sessions and locks.
pub(super) fn start(kind: MySqlKind) -> Server {
    Shared::take(kind).unwrap()
}

/// Starts a server for a case that changes users or variables.
pub(super) fn start_own(kind: MySqlKind) -> MySqlServer {
    MySqlServer::start(kind, &MySqlOptions::new()).unwrap()
}

/// Opens a keeper, with time for a reply on a busy machine where `keys` do not say it.
pub(super) fn open(url: &str, keys: &str) -> LockKeeper {
    opened(&format!("{url}?{}", with_reply_time(keys)))
}

/// Returns the sessions that wait for the name.
pub(super) fn waiting_for(server: &MySqlServer, name: &str) -> Vec<MySqlSession> {
    waiting_among(server.sessions().unwrap(), name)
}

/// Returns those of the sessions that wait for the name.
pub(super) fn waiting_among(mut sessions: Vec<MySqlSession>, name: &str) -> Vec<MySqlSession> {
    let quoted = format!("'default:{name}'");
    sessions.retain(|session| {
        let statement = session.statement.as_deref().unwrap_or_default();
        session.state == "User lock" && statement.contains(&quoted)
    });
    sessions
}

/// Returns the session that holds the name.
pub(super) fn holder_of(server: &MySqlServer, name: &str) -> Option<u64> {
    let mut holders = server.holding_sessions("default", &[name]).unwrap();
    holders.pop_first()
}

#[track_caller]
pub(super) fn assert_clean(server: &MySqlServer) {
    until("no session is left", || {
        server.sessions().unwrap().is_empty()
    });
}
