//! A running Consul server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::process::Command;

use serde_json::Value;

use super::client::{keys, request};
use super::{ConsulKey, ConsulKind, ConsulOptions};
use crate::cluster::Member;
use crate::daemon::{Daemon, free_ports};

/// A server that runs until this is dropped. All methods can be called from any thread.
///
/// Its folder is in memory (`/dev/shm`) where the system has that. So no write waits for a disk, and the data outlive a
/// restart of the server.
#[derive(Debug)]
pub struct ConsulServer {
    daemon: Daemon,
    tls_port: u16,
}

/// The servers of a cluster.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    pub(super) name: String,
    /// The ports of this server for the others: for requests, and for gossip.
    pub(super) ports: [u16; 2],
    /// The gossip ports of all servers.
    pub(super) all: Vec<u16>,
}

impl ConsulServer {
    /// Starts a server on its own and returns when it replies.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`ConsulKind::ignored`]), or it did not start: its log is in the error.
    pub fn start(kind: ConsulKind, options: &ConsulOptions) -> io::Result<Self> {
        let ports: [u16; 2] = free_ports()?;
        let alone = Peers {
            name: "one".to_owned(),
            ports,
            all: vec![ports[1]],
        };
        Self::start_among(kind, options, &alone)
    }

    pub(super) fn start_among(
        kind: ConsulKind,
        options: &ConsulOptions,
        peers: &Peers,
    ) -> io::Result<Self> {
        let mut daemon = Daemon::in_memory(kind.name(), kind.program())?;
        daemon.certify(options.tls)?;
        let [tls_port] = free_ports()?;
        let (options, peers) = (options.clone(), peers.clone());
        daemon.start(1, move |daemon| {
            let command = command(&options, &peers, tls_port, daemon);
            daemon.launch(command, || ready(daemon.addr()))
        })?;
        Ok(Self { daemon, tls_port })
    }

    /// Returns `consul://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("consul://{}", self.addr())
    }

    /// Returns `consuls://localhost:PORT`, if the server listens for TLS. The authority to trust is in
    /// `Daemon::certificates`.
    #[must_use]
    pub fn tls_url(&self) -> Option<String> {
        let url = format!("consuls://localhost:{}", self.tls_port);
        self.certificates().map(|_| url)
    }

    /// Returns the address on which the server listens for TLS, if it does.
    #[must_use]
    pub fn tls_addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.tls_port).into()
    }

    /// Makes a request and returns the body of the reply, which is `null` for a missing key:
    /// `call("PUT", "/v1/session/destroy/ID", None, "")`.
    ///
    /// # Errors
    /// The server's own error, no answer within 30 s, or no connection.
    pub fn call(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> io::Result<Value> {
        request(self.addr(), &format!("{method} {path}"), token, body)
    }

    /// Returns the keys that begin with `prefix`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn keys(&self, prefix: &str) -> io::Result<Vec<ConsulKey>> {
        let path = format!("/v1/kv/{prefix}?recurse");
        Ok(keys(&self.call("GET", &path, None, "")?))
    }

    /// Deletes the keys that begin with `prefix`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn delete(&self, prefix: &str) -> io::Result<()> {
        let path = format!("/v1/kv/{prefix}?recurse");
        self.call("DELETE", &path, None, "").map(drop)
    }

    /// Ends a session.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn destroy(&self, session: &str) -> io::Result<()> {
        let path = format!("/v1/session/destroy/{session}");
        self.call("PUT", &path, None, "").map(drop)
    }

    /// Returns the sessions, with all that the server tells of them.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn sessions(&self) -> io::Result<Vec<Value>> {
        let sessions = self.call("GET", "/v1/session/list", None, "")?;
        Ok(sessions.as_array().cloned().unwrap_or_default())
    }
}

impl Member for ConsulServer {
    const SCHEME: &'static str = "consul";

    fn leads(&self) -> bool {
        let leads = |stats: &Value| stats.pointer("/Stats/consul/leader").cloned();
        let own = self.call("GET", "/v1/agent/self", None, "");
        own.is_ok_and(|own| leads(&own).is_some_and(|it| it == "true"))
    }
}

/// Returns whether the server replies, and knows a leader.
fn ready(addr: SocketAddr) -> io::Result<()> {
    match request(addr, "GET /v1/status/leader", None, "")?.as_str() {
        None | Some("") => Err(io::Error::other("it has no leader")),
        Some(_) => Ok(()),
    }
}

fn command(options: &ConsulOptions, peers: &Peers, tls_port: u16, daemon: &Daemon) -> Command {
    let mut command = Command::new(daemon.program());
    let [server, gossip] = peers.ports.map(|port| port.to_string());
    let http = daemon.addr().port().to_string();
    command.args([
        "agent",
        "-server",
        "-bind",
        "127.0.0.1",
        "-client",
        "127.0.0.1",
    ]);
    command.args([
        "-node",
        &peers.name,
        "-http-port",
        &http,
        "-server-port",
        &server,
    ]);
    command.args(["-serf-lan-port", &gossip, "-serf-wan-port", "-1"]);
    command.args(["-dns-port", "-1", "-grpc-port", "-1"]);
    command.args(["-bootstrap-expect", &peers.all.len().to_string()]);
    for port in peers.all.iter().filter(|port| **port != peers.ports[1]) {
        command.args(["-retry-join", &format!("127.0.0.1:{port}")]);
    }
    command.arg("-data-dir").arg(daemon.folder().join("data"));
    // A new leader within some 2 s, and quick attempts to join at the start.
    let mut config = format!(
        "session_ttl_min = \"{}ms\"\nperformance {{ raft_multiplier = 1 }}\ndisable_update_check = true\nretry_interval = \"100ms\"\n{}",
        options.min_ttl.as_millis(),
        options.config
    );
    if let Some(certificates) = daemon.certificates() {
        let [certificate, key] =
            [&certificates.certificate, &certificates.key].map(|it| it.display());
        let tls = format!(
            "ports {{ https = {tls_port} }}\ncert_file = \"{certificate}\"\nkey_file = \"{key}\"\nverify_incoming = false\n"
        );
        config.push_str(&tls);
    }
    command.args(["-hcl", &config]);
    command
}

impl Deref for ConsulServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}
