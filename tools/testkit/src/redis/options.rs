//! Options for starting a server.

use std::net::SocketAddr;
use std::time::Duration;

use super::RedisServer;
use crate::tls::{MakeCertificates, tls_setter};

/// Options for starting a server.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    pub(super) args: Vec<String>,
    pub(super) password: Option<String>,
    /// The lines of a sentinel's file, which it rewrites, if the server is to be a sentinel.
    pub(super) sentinel: Option<Vec<String>>,
    /// Whether the server is a node of a cluster.
    pub(super) cluster: bool,
    /// Whether [`RedisServer::set_clock`] works.
    pub(super) settable_clock: bool,
    /// Makes the certificates, if the server speaks TLS.
    pub(super) tls: Option<MakeCertificates>,
}

impl RedisOptions {
    /// Returns the default: no password, no TLS, no persistence.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line to the server's configuration: `config("maxmemory", ["1mb"])`. It comes after the lines of this crate.
    #[must_use]
    pub fn config<V: Into<String>>(
        mut self,
        name: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        self.args.push(format!("--{name}"));
        self.args.extend(values.into_iter().map(Into::into));
        self
    }

    /// Sets the default user's password, which the commands of this crate log in with.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config("requirepass", [password])
            .config("masterauth", [password])
    }

    tls_setter!(
        "Listens for TLS on a second port, with certificates made for the server; clients need none."
    );

    /// Runs the server with a wall clock that [`RedisServer::set_clock`] sets. It needs what
    /// [`RedisKind::clock_ignored`](crate::RedisKind::clock_ignored) looks for.
    #[must_use]
    pub fn settable_clock(mut self) -> Self {
        self.settable_clock = true;
        self
    }

    /// Makes the server a read-only replica of `primary`; [`RedisServer::wait_for_sync`] waits for its first copy.
    #[must_use]
    pub fn replica_of(self, primary: &RedisServer) -> Self {
        let replica = self.config(
            "replicaof",
            ["127.0.0.1".to_owned(), primary.addr().port().to_string()],
        );
        match primary.password() {
            Some(password) => replica.config("masterauth", [password]),
            None => replica,
        }
    }

    /// Makes the server a node of a cluster, which knows no other node yet.
    #[must_use]
    pub fn cluster_node(mut self, node_timeout: Duration) -> Self {
        self.cluster = true;
        let millis = node_timeout.as_millis().to_string();
        self.config("cluster-enabled", ["yes"])
            .config("cluster-node-timeout", [millis])
    }

    /// Makes the server a sentinel that watches `primary` as `mymaster`, by this address of it. A fail-over needs
    /// `quorum` sentinels for which the primary has been silent for `down_after`.
    #[must_use]
    pub fn sentinel_of(
        mut self,
        primary: &RedisServer,
        addr: SocketAddr,
        quorum: usize,
        down_after: Duration,
    ) -> Self {
        let (ip, port) = (addr.ip(), addr.port());
        let silent = down_after.as_millis();
        let mut lines = vec![
            format!("monitor mymaster {ip} {port} {quorum}"),
            format!("down-after-milliseconds mymaster {silent}"),
            "failover-timeout mymaster 5000".to_owned(),
            "parallel-syncs mymaster 2".to_owned(),
        ];
        if let Some(password) = primary.password() {
            lines.push(format!("auth-pass mymaster {password}"));
        }
        self.sentinel = Some(lines);
        self
    }
}
