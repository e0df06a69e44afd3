//! A running ZooKeeper.

use std::fs;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use super::{ZooKeeperClient, ZooKeeperKind, ZooKeeperOptions};
use crate::cluster::{Member, NetworkedMember};
use crate::daemon::Daemon;

/// A server that runs until this is dropped. All methods can be called from any thread.
///
/// Its folder is in memory (`/dev/shm`) where the system has that. So no write waits for a disk, and the data
/// outlive a restart of the server.
#[derive(Debug)]
pub struct ZooKeeperServer {
    kind: ZooKeeperKind,
    daemon: Daemon,
}

/// The longest time to wait for a reply while the server starts.
const FIRST_REPLY: Duration = Duration::from_millis(500);

/// A member's number, and the lines about all members.
#[derive(Debug, Clone)]
pub(super) struct Peers {
    pub(super) id: usize,
    pub(super) lines: Vec<String>,
}

impl ZooKeeperServer {
    /// Starts a server that is no ensemble's member, and returns when it replies.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`ZooKeeperKind::ignored`]), or it did not start: its log is in
    /// the error.
    pub fn start(kind: ZooKeeperKind, options: &ZooKeeperOptions) -> io::Result<Self> {
        Self::start_among(kind, options, None)
    }

    /// Starts a member of an ensemble; `None` is a server alone. A member replies when there is a leader.
    pub(super) fn start_among(
        kind: ZooKeeperKind,
        options: &ZooKeeperOptions,
        peers: Option<&Peers>,
    ) -> io::Result<Self> {
        let mut daemon = Daemon::in_memory(kind.name(), kind.program())?;
        daemon.certify(options.tls)?;
        let ports = 1 + usize::from(daemon.certificates().is_some());
        let (options, peers) = (options.clone(), peers.cloned());
        daemon.start(ports, move |daemon| {
            let command = command(&options, peers.as_ref(), daemon)?;
            daemon.launch(command, || {
                ZooKeeperClient::connect_within(daemon.addr(), FIRST_REPLY).map(drop)
            })
        })?;
        Ok(Self { kind, daemon })
    }

    /// Returns which server this is.
    #[must_use]
    pub fn kind(&self) -> ZooKeeperKind {
        self.kind
    }

    /// Returns `zookeeper://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.addr())
    }

    /// Returns `zookeepers://localhost:PORT`, if the server listens for TLS. The authority to trust is in
    /// `Daemon::certificates`.
    #[must_use]
    pub fn tls_url(&self) -> Option<String> {
        let [_, port, _] = self.ports();
        let url = format!("zookeepers://localhost:{port}");
        self.certificates().map(|_| url)
    }

    /// Kills the server if it runs, and starts it on the same ports without its data.
    ///
    /// # Errors
    /// The server did not start: its log is in the error.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.kill();
        fs::remove_dir_all(data(self))?;
        self.restart()
    }

    /// Connects a client.
    ///
    /// # Errors
    /// As [`ZooKeeperClient::connect`].
    pub fn client(&self) -> io::Result<ZooKeeperClient> {
        ZooKeeperClient::connect(self.addr())
    }

    /// Returns what the server says of itself.
    ///
    /// # Errors
    /// As [`ZooKeeperClient::command`].
    pub fn state(&self) -> io::Result<String> {
        ZooKeeperClient::command(self.addr(), "srvr")
    }
}

impl Member for ZooKeeperServer {
    const SCHEME: &'static str = "zookeeper";

    fn leads(&self) -> bool {
        let state = self.state();
        state.is_ok_and(|state| state.contains("Mode: leader"))
    }
}

impl NetworkedMember for ZooKeeperServer {}

fn data(daemon: &Daemon) -> PathBuf {
    daemon.folder().join("data")
}

fn command(
    options: &ZooKeeperOptions,
    peers: Option<&Peers>,
    daemon: &Daemon,
) -> io::Result<Command> {
    let data = data(daemon);
    fs::create_dir_all(&data)?;
    let [client, tls, _] = daemon.ports();
    let mut lines = vec![
        format!("dataDir={}", data.display()),
        format!("clientPortAddress=127.0.0.1\nclientPort={client}"),
        // Sessions end at a multiple of this time, and live for two of it at least.
        "tickTime=200\nmaxSessionTimeout=86400000".to_owned(),
        "admin.enableServer=false\nmaxClientCnxns=0".to_owned(),
        // No file is 64 MB in memory.
        "preAllocSize=64\nsnapCount=10000".to_owned(),
    ];
    if let Some(certificates) = daemon.certificates() {
        let both = daemon.folder().join("both.pem");
        let pem = |file| fs::read_to_string(file);
        fs::write(
            &both,
            pem(&certificates.key)? + &pem(&certificates.certificate)?,
        )?;
        lines.extend([
            format!("secureClientPort={tls}\nsecureClientPortAddress=127.0.0.1"),
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
            format!("ssl.keyStore.location={}", both.display()),
            format!(
                "ssl.trustStore.location={}",
                certificates.authority.display()
            ),
            "ssl.clientAuth=none".to_owned(),
        ]);
    }
    if let Some(peers) = peers {
        // A member that is silent for three seconds is left.
        lines.push("initLimit=50\nsyncLimit=15".to_owned());
        lines.extend(peers.lines.iter().cloned());
        fs::write(data.join("myid"), peers.id.to_string())?;
    }
    lines.extend(options.lines.iter().cloned());
    let file = daemon.folder().join("zoo.cfg");
    fs::write(&file, lines.join("\n"))?;
    let mut command = Command::new(daemon.program());
    command.arg(&file).env("JVMFLAGS", options.java.join(" "));
    Ok(command)
}

impl Deref for ZooKeeperServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}
