//! MySQL and MariaDB servers as the common cases see them, and their sessions.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use lockkeeper::{ErrorKind, LockKeeper};
use lockkeeper_testkit::{
    Daemon, MySqlKind, MySqlOptions, MySqlServer, MySqlSession, Shared, until,
};

use crate::faults::{FaultServer, opened, with_reply_time};
use crate::session_server::SessionServer;

pub(super) type Server = Shared<MySqlServer>;

impl FaultServer for Server {
    type Kind = MySqlKind;

    const LOCK_REQUEST: &'static str = "default:a";
    const MID_REPLY: usize = 7;
    const LEASE_OUTLIVES_CONNECTION: bool = false;

    fn start(kind: MySqlKind) -> Self {
        start(kind)
    }

    fn addr(&self) -> SocketAddr {
        MySqlServer::addr(self)
    }

    fn daemon(&self) -> &Daemon {
        self
    }

    fn restart(&self) -> io::Result<()> {
        MySqlServer::restart(self)
    }

    fn base_url(&self, addr: SocketAddr) -> String {
        format!("{}?{}", self.url_via(addr), self.key_setting())
    }

    fn urls_of(addr: &str) -> [String; 2] {
        ["", "tls=on&"].map(|tls| format!("mysql://me:s3cret@{addr}/?{tls}"))
    }

    fn socket_url(&self) -> Option<String> {
        Some(format!("mysql:?socket={}&user=me", self.socket().display()))
    }

    fn queue_length(&self, name: &str) -> usize {
        waiting_for(self, name).len()
    }

    /// No session of a keeper is left, and so no lock.
    fn assert_clean(&self) {
        assert_clean(self);
    }
}

impl SessionServer for Server {
    const SERVER: &'static str = "MySQL server";
    const GREETINGS: &'static [&'static [u8]] = &[
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"220 mail.example.org ESMTP\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0",
        b"\x01\0\0\0\x09",
        // MySQL 3.23, which hashed passwords in another way.
        b"\x19\x00\x00\x00\x093.23.49\x00\x01\x00\x00\x00abcdefgh\x00\x2c\x00",
    ];
    const NOT_UNDERSTOOD: ErrorKind = ErrorKind::Unavailable;

    fn holders(&self, names: &[&str]) -> BTreeSet<u64> {
        let holders = names.iter().filter_map(|name| holder_of(self, name));
        holders.collect()
    }

    fn waiters(&self, name: &str) -> BTreeSet<u64> {
        let waiters = waiting_for(self, name);
        waiters.iter().map(|session| session.id).collect()
    }

    fn kill(&self, session: u64) {
        self.execute(&format!("KILL {session}")).unwrap();
    }

    fn cancel(&self, session: u64) {
        self.execute(&format!("KILL QUERY {session}")).unwrap();
    }
}

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
    let sql = format!("SELECT IS_USED_LOCK('default:{name}')");
    let id = server.value(&sql).unwrap()?;
    Some(id.parse().unwrap())
}

#[track_caller]
pub(super) fn assert_clean(server: &MySqlServer) {
    until("no session is left", || {
        server.sessions().unwrap().is_empty()
    });
}
