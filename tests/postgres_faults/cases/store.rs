//! PostgreSQL servers as the common cases see them, and their sessions.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;

use lockkeeper::ErrorKind;
use lockkeeper_testkit::{Daemon, PostgresKind, PostgresServer, Shared, until};

use crate::faults::FaultServer;
use crate::session_server::SessionServer;

pub(super) type Server = Shared<PostgresServer>;

impl FaultServer for Server {
    type Kind = PostgresKind;

    /// Each request shows the names that it is about.
    const LOCK_REQUEST: &'static str = "default:a";
    const MID_REPLY: usize = 7;
    const LEASE_OUTLIVES_CONNECTION: bool = false;

    fn start(kind: PostgresKind) -> Self {
        start(kind)
    }

    fn addr(&self) -> SocketAddr {
        PostgresServer::addr(self)
    }

    fn daemon(&self) -> &Daemon {
        self
    }

    fn restart(&self) -> io::Result<()> {
        PostgresServer::restart(self)
    }

    fn base_url(&self, addr: SocketAddr) -> String {
        format!("{}?", self.url_via(addr))
    }

    fn urls_of(addr: &str) -> [String; 2] {
        ["", "tls=on&"].map(|tls| format!("postgres://me:s3cret@{addr}/?{tls}"))
    }

    fn socket_url(&self) -> Option<String> {
        let socket = self.socket();
        Some(format!("postgres:?socket={}&user=me", socket.display()))
    }

    fn queue_length(&self, name: &str) -> usize {
        self.waiters(name).len()
    }

    /// No session of a keeper is left, and so no lock.
    fn assert_clean(&self) {
        until("no session is left", || self.sessions().unwrap().is_empty());
    }
}

impl SessionServer for Server {
    const SERVER: &'static str = "PostgreSQL server";
    const GREETINGS: &'static [&'static [u8]] = &[
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0\0\0\0\0\0\0\0",
        b"R\0\0\0\x01",
        b"R\x7f\xff\xff\xff\0\0\0\0",
        b"E\0\0\0\x05\0",
    ];
    const NOT_UNDERSTOOD: ErrorKind = ErrorKind::Incompatible;

    fn holders(&self, names: &[&str]) -> BTreeSet<u64> {
        sessions(self, &pids(names, "granted"))
    }

    fn waiters(&self, name: &str) -> BTreeSet<u64> {
        sessions(self, &pids(&[name], "NOT granted"))
    }

    fn kill(&self, session: u64) {
        let sql = format!("SELECT pg_terminate_backend({session}, 10000)");
        self.execute(&sql).unwrap();
    }

    fn cancel(&self, session: u64) {
        let sql = format!("SELECT pg_cancel_backend({session})");
        self.execute(&sql).unwrap();
    }
}

/// Returns the statement for the sessions whose locks of the names are as `state` says.
fn pids(names: &[&str], state: &str) -> String {
    let hash = "sha256('default'::bytea || '\\xff'::bytea || convert_to(name, 'UTF8'))";
    let names = names.join("'), ('");
    format!(
        "SELECT pid FROM (VALUES ('{names}')) AS names (name), pg_locks \
         WHERE locktype = 'advisory' AND objsubid = 1 AND {state} \
         AND classid::int8 << 32 | objid::int8 \
         = ('x' || encode({hash}, 'hex'))::bit(64)::int8 & 9223372036854775807"
    )
}

/// Takes a server for a case that changes nothing but sessions and locks.
pub(super) fn start(kind: PostgresKind) -> Server {
    Shared::take(kind).unwrap()
}

fn sessions(server: &PostgresServer, sql: &str) -> BTreeSet<u64> {
    let rows = server.rows(sql).unwrap().into_iter().flatten();
    rows.map(|pid| pid.parse().unwrap()).collect()
}
