//! PostgreSQL servers as the common cases see them, and their sessions.

use std::io;
use std::net::SocketAddr;

use lockkeeper::LockKeeper;
use lockkeeper_testkit::{
    Daemon, PooledServer, PostgresKind, PostgresOptions, PostgresServer, ServerPool, until,
};

use crate::faults::FaultServer;

/// Cases that leave a server as it was share it.
static SERVERS: ServerPool<PostgresKind, PostgresServer> = ServerPool::new(
    |kind| PostgresServer::start(kind, &PostgresOptions::new()),
    PostgresServer::end_sessions,
);

pub(super) type Server = PooledServer<PostgresKind, PostgresServer>;

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
        waiters(self, name).len()
    }

    /// No session of a keeper is left, and so no lock.
    fn assert_clean(&self) {
        assert_clean(self);
    }
}

/// Takes a server for a case that changes nothing but sessions and locks.
pub(super) fn start(kind: PostgresKind) -> Server {
    SERVERS.take(kind).unwrap()
}

/// Opens a keeper, with time for a reply on a busy machine where `keys` do not say it.
pub(super) fn open(url: &str, keys: &str) -> LockKeeper {
    let timeout = if keys.contains("response_timeout") {
        ""
    } else {
        "&response_timeout=5s"
    };
    lockkeeper::open(&format!("{url}?{keys}{timeout}")).unwrap()
}

/// Returns the sessions that wait for a name.
pub(super) fn waiters(server: &PostgresServer, name: &str) -> Vec<u32> {
    let hash = "sha256('default'::bytea || '\\xff'::bytea || convert_to(name, 'UTF8'))";
    sessions(
        server,
        &format!(
            "SELECT pid FROM (VALUES ('{name}')) AS names (name), pg_locks WHERE NOT granted \
             AND classid::int8 << 32 | objid::int8 \
             = ('x' || encode({hash}, 'hex'))::bit(64)::int8 & 9223372036854775807"
        ),
    )
}

/// Returns the sessions that hold names.
pub(super) fn holders(server: &PostgresServer) -> Vec<u32> {
    let sql = "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND granted";
    sessions(server, sql)
}

fn sessions(server: &PostgresServer, sql: &str) -> Vec<u32> {
    let rows = server.rows(sql).unwrap().into_iter().flatten();
    rows.map(|pid| pid.parse().unwrap()).collect()
}

pub(super) fn kill(server: &PostgresServer, pid: u32) {
    server
        .execute(&format!("SELECT pg_terminate_backend({pid}, 10000)"))
        .unwrap();
}

#[track_caller]
pub(super) fn assert_clean(server: &PostgresServer) {
    until("no session is left", || {
        server.sessions().unwrap().is_empty()
    });
}
