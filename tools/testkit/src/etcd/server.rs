//! A running etcd.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::client::{encoded, keys, post, under};
use super::{EtcdKey, EtcdKind, EtcdOptions};
use crate::daemon::{self, Daemon};
use crate::tls::Certificates;

/// A server that runs until this is dropped. All methods can be called from any thread.
///
/// Its folder is in memory (`/dev/shm`) where the system has that. So no write waits for a disk, and the data
/// outlive a restart of the server.
#[derive(Debug)]
pub struct EtcdServer {
    kind: EtcdKind,
    options: EtcdOptions,
    port: u16,
    peers: Peers,
    tls: Option<(u16, Certificates)>,
    /// How often a new cluster was made.
    renewed: AtomicU32,
    daemon: Daemon,
}

/// The name of the only member of its cluster.
const ALONE: &str = "one";

/// How a member is reached by the others.
#[derive(Debug, Clone, Default)]
pub(super) struct Peers {
    pub(super) name: String,
    /// The port that it listens on.
    pub(super) port: u16,
    /// All members: `NAME=URL,NAME=URL`.
    pub(super) all: String,
}

impl EtcdServer {
    /// Starts a cluster of one member and returns when it replies.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`EtcdKind::ignored`]), or it did not start: its log is in
    /// the error.
    pub fn start(kind: EtcdKind, options: &EtcdOptions) -> io::Result<Self> {
        Self::start_among(kind, options, None)
    }

    /// Starts a member of a cluster; `None` is the only one of its own.
    pub(super) fn start_among(
        kind: EtcdKind,
        options: &EtcdOptions,
        peers: Option<&Peers>,
    ) -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let daemon = match memory.is_dir() {
            true => Daemon::new_in(memory, kind.name(), kind.program())?,
            false => Daemon::new(kind.name(), kind.program())?,
        };
        let tls = match options.tls {
            Some(make) => Some((0, make(daemon.folder())?)),
            None => None,
        };
        let mut server = Self {
            kind,
            options: options.clone(),
            port: 0,
            peers: peers.cloned().unwrap_or_default(),
            tls,
            renewed: AtomicU32::default(),
            daemon,
        };
        daemon::retry_on_taken_port(|| {
            let [plain, peer, encrypted] = daemon::free_ports()?;
            server.port = plain;
            if peers.is_none() {
                server.peers = Peers {
                    name: ALONE.to_owned(),
                    port: peer,
                    all: format!("{ALONE}=http://127.0.0.1:{peer}"),
                };
            }
            if let Some((port, _)) = &mut server.tls {
                *port = encrypted;
            }
            server.launch()
        })?;
        Ok(server)
    }

    /// Returns which server this is.
    #[must_use]
    pub fn kind(&self) -> EtcdKind {
        self.kind
    }

    /// Returns the address that the server listens on without TLS.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the certificates of the TLS port, if there is one.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// Returns `etcd://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.addr())
    }

    /// Returns `etcds://localhost:PORT`, if the server listens for TLS. The authority to trust is in
    /// [`EtcdServer::certificates`].
    #[must_use]
    pub fn tls_url(&self) -> Option<String> {
        let port = self.tls.as_ref().map(|(port, _)| port);
        port.map(|port| format!("etcds://localhost:{port}"))
    }

    /// Kills the server if it runs, and starts it on the same ports. It has its data.
    ///
    /// # Errors
    /// The server did not start: its log is in the error.
    pub fn restart(&self) -> io::Result<()> {
        self.kill();
        daemon::retry_on_former_port(|| self.launch())
    }

    /// Kills the server if it runs, and starts it on the same ports without its data, as another cluster.
    ///
    /// # Errors
    /// The server did not start: its log is in the error.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.kill();
        std::fs::remove_dir_all(self.data().join("member"))?;
        self.renewed.fetch_add(1, Ordering::Relaxed);
        self.restart()
    }

    /// Posts a JSON object to the gateway and returns the reply's: `call("/v3/maintenance/status", &json!({}))`.
    ///
    /// # Errors
    /// The server's own error, no answer within 30 s, or no connection.
    pub fn call(&self, path: &str, body: &Value) -> io::Result<Value> {
        post(self.addr(), path, body)
    }

    /// Returns the keys that begin with `prefix`, which ends with `/`.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn keys(&self, prefix: &str) -> io::Result<Vec<EtcdKey>> {
        Ok(keys(&self.call("/v3/kv/range", &under(prefix))?))
    }

    /// Writes a key.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn put(&self, key: &str, value: &str) -> io::Result<()> {
        let body = json!({ "key": encoded(key), "value": encoded(value) });
        self.call("/v3/kv/put", &body).map(drop)
    }

    /// Deletes the keys that begin with `prefix`, which ends with `/`, and returns how many there were.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn delete(&self, prefix: &str) -> io::Result<u64> {
        self.delete_all(&under(prefix))
    }

    /// Deletes one key, and returns how many there were.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn delete_key(&self, key: &str) -> io::Result<u64> {
        self.delete_all(&json!({ "key": encoded(key) }))
    }

    fn delete_all(&self, keys: &Value) -> io::Result<u64> {
        let reply = self.call("/v3/kv/deleterange", keys)?;
        let deleted = reply.get("deleted").and_then(Value::as_str);
        Ok(deleted.and_then(|count| count.parse().ok()).unwrap_or(0))
    }

    fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    fn launch(&self) -> io::Result<()> {
        self.daemon.launch(self.server(), || {
            let status = match self.call("/v3/maintenance/status", &json!({})) {
                // From 3.5 on, a server with users tells its status to root alone.
                Err(error) if error.to_string().contains("user name is empty") => return Ok(()),
                status => status?,
            };
            let has_leader = status.get("leader").is_some();
            has_leader
                .then_some(())
                .ok_or_else(|| io::Error::other("it has no leader"))
        })
    }

    fn server(&self) -> Command {
        let mut command = Command::new(self.daemon.program());
        let client = format!("http://{}", self.addr());
        let Peers { name, port, all } = &self.peers;
        let named = |member: &&str| member.starts_with(&format!("{name}="));
        let own = all.split(',').find(named);
        let own = own.and_then(|own| own.split_once('='));
        let own = own.map_or("", |(_, url)| url);
        let mut listen = client.clone();
        if let Some((port, certificates)) = &self.tls {
            listen = format!("{listen},https://127.0.0.1:{port}");
            command.arg("--cert-file").arg(&certificates.certificate);
            command.arg("--key-file").arg(&certificates.key);
            if self.options.wants_client_certificate {
                command.arg("--client-cert-auth");
                command
                    .arg("--trusted-ca-file")
                    .arg(&certificates.authority);
            }
        }
        command.args(["--name", name, "--logger", "zap"]);
        // A login costs no 60 ms of processor time then.
        command.arg("--bcrypt-cost=4");
        command.arg("--data-dir").arg(self.data());
        command.args(["--listen-client-urls", &listen]);
        command.args(["--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{port}")]);
        command.args(["--initial-advertise-peer-urls", own]);
        command.args(["--initial-cluster", all]);
        // It decides the id of the cluster, together with the addresses.
        let token = self.renewed.load(Ordering::Relaxed).to_string();
        command.args(["--initial-cluster-token", &token]);
        if self.peers.name == ALONE {
            // It elects itself soon when it starts: before the leases of a test end.
            command.args(["--heartbeat-interval=40", "--election-timeout=200"]);
        }
        command.args(&self.options.args);
        command
    }
}

impl Deref for EtcdServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}
