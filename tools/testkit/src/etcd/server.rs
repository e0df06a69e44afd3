//! A running etcd.

use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::client::{encoded, keys, number, post, under};
use super::{EtcdKey, EtcdKind, EtcdOptions};
use crate::cluster::{Member, NetworkedMember};
use crate::daemon::Daemon;

/// A server that runs until this is dropped. All methods can be called from any thread.
///
/// Its folder is in memory (`/dev/shm`) where the system has that. So no write waits for a disk, and the data
/// outlive a restart of the server.
#[derive(Debug)]
pub struct EtcdServer {
    kind: EtcdKind,
    /// How often a new cluster was made.
    renewed: Arc<AtomicU32>,
    /// `None` for the only member of its cluster.
    pub(super) peers: Option<Peers>,
    daemon: Daemon,
}

/// The name of the only member of its cluster.
const ALONE: &str = "one";

/// How a member is reached by the others.
#[derive(Debug, Clone)]
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
        let mut daemon = Daemon::in_memory(kind.name(), kind.program())?;
        daemon.certify(options.tls)?;
        let renewed = Arc::<AtomicU32>::default();
        let (options, among, token) = (options.clone(), peers.cloned(), Arc::clone(&renewed));
        let ports = if daemon.certificates().is_some() {
            3
        } else {
            2
        };
        daemon.start(ports, move |daemon| {
            let [_, port, _] = daemon.ports();
            let alone = || Peers {
                name: ALONE.to_owned(),
                port,
                all: format!("{ALONE}=http://127.0.0.1:{port}"),
            };
            let peers = among.clone().unwrap_or_else(alone);
            let token = token.load(Ordering::Relaxed);
            daemon.launch(command(&options, &peers, token, daemon), || ready(daemon))
        })?;
        Ok(Self {
            kind,
            renewed,
            peers: peers.cloned(),
            daemon,
        })
    }

    /// Returns which server this is.
    #[must_use]
    pub fn kind(&self) -> EtcdKind {
        self.kind
    }

    /// Returns `etcd://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("etcd://{}", self.addr())
    }

    /// Returns `etcds://localhost:PORT`, if the server listens for TLS. The authority to trust is in
    /// `Daemon::certificates`.
    #[must_use]
    pub fn tls_url(&self) -> Option<String> {
        let [_, _, port] = self.ports();
        let url = format!("etcds://localhost:{port}");
        self.certificates().map(|_| url)
    }

    /// Kills the server if it runs, and starts it on the same ports without its data, as another cluster.
    ///
    /// # Errors
    /// The server did not start: its log is in the error.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.kill();
        std::fs::remove_dir_all(data(self).join("member"))?;
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
}

impl Member for EtcdServer {
    const SCHEME: &'static str = "etcd";

    fn leads(&self) -> bool {
        let status = self.call("/v3/maintenance/status", &json!({}));
        status.is_ok_and(|it| number(&it, "/leader") == number(&it, "/header/member_id"))
    }
}

impl NetworkedMember for EtcdServer {}

fn data(daemon: &Daemon) -> PathBuf {
    daemon.folder().join("data")
}

/// Returns whether the server replies, and knows a leader.
fn ready(daemon: &Daemon) -> io::Result<()> {
    let status = match post(daemon.addr(), "/v3/maintenance/status", &json!({})) {
        // From 3.5 on, a server with users tells its status to root alone.
        Err(error) if error.to_string().contains("user name is empty") => return Ok(()),
        status => status?,
    };
    match status.get("leader") {
        Some(_) => Ok(()),
        None => Err(io::Error::other("it has no leader")),
    }
}

/// `token` decides the id of the cluster, together with the addresses.
fn command(options: &EtcdOptions, peers: &Peers, token: u32, daemon: &Daemon) -> Command {
    let mut command = Command::new(daemon.program());
    let client = format!("http://{}", daemon.addr());
    let Peers { name, port, all } = peers;
    let named = |member: &&str| member.starts_with(&format!("{name}="));
    let own = all.split(',').find(named);
    let own = own.and_then(|own| own.split_once('='));
    let own = own.map_or("", |(_, url)| url);
    let mut listen = client.clone();
    if let Some(certificates) = daemon.certificates() {
        let [_, _, port] = daemon.ports();
        listen = format!("{listen},https://127.0.0.1:{port}");
        command.arg("--cert-file").arg(&certificates.certificate);
        command.arg("--key-file").arg(&certificates.key);
        if options.wants_client_certificate {
            command.arg("--client-cert-auth");
            command
                .arg("--trusted-ca-file")
                .arg(&certificates.authority);
        }
    }
    command.args(["--name", name, "--logger", "zap"]);
    // A login costs no 60 ms of processor time then.
    command.arg("--bcrypt-cost=4");
    command.arg("--data-dir").arg(data(daemon));
    command.args(["--listen-client-urls", &listen]);
    command.args(["--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{port}")]);
    command.args(["--initial-advertise-peer-urls", own]);
    command.args(["--initial-cluster", all]);
    command.args(["--initial-cluster-token", &token.to_string()]);
    if name == ALONE {
        // It elects itself soon when it starts: before the leases of a test end.
        command.args(["--heartbeat-interval=40", "--election-timeout=200"]);
    }
    command.args(&options.args);
    command
}

impl Deref for EtcdServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}
