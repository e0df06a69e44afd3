//! A running Redis or Valkey.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::process::Command;
use std::time::Duration;

use super::{RedisClient, RedisKind, RedisOptions, Reply};
use crate::daemon::{Daemon, START};
use crate::find;
use crate::until::found_within;

/// Shortens a sentinel's intervals, which are one second or ten by default. A replica takes over only if it replied
/// within five ping periods. Sentinels correct the primary of a replica only after four hello periods.
/// `TILT-TRIGGER`: by default, a sentinel that a busy machine delays for 2 s starts no fail-over for 30 s.
const QUICK_SENTINEL: &[&str] = &[
    "SENTINEL",
    "DEBUG",
    "INFO-PERIOD",
    "100",
    "PING-PERIOD",
    "500",
    "ASK-PERIOD",
    "100",
    "PUBLISH-PERIOD",
    "1000",
    "TILT-TRIGGER",
    "60000",
];

/// The file of a sentinel, which it rewrites.
const SENTINEL_FILE: &str = "sentinel.conf";

/// The file in a server's folder that says by how much its wall clock is ahead of the host's.
const CLOCK_FILE: &str = "clock";

/// A server that runs until this is dropped. All methods can be called from any thread.
#[derive(Debug)]
pub struct RedisServer {
    kind: RedisKind,
    options: RedisOptions,
    daemon: Daemon,
}

impl RedisServer {
    /// Starts a server and returns when it replies.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`RedisKind::ignored`]), or it did not start: its log is in
    /// the error.
    pub fn start(kind: RedisKind, options: &RedisOptions) -> io::Result<Self> {
        let mut daemon = Daemon::new(kind.name(), kind.program())?;
        daemon.certify(options.tls)?;
        if let Some(lines) = &options.sentinel {
            let lines = lines.iter().map(|line| format!("sentinel {line}\n"));
            fs::write(
                daemon.folder().join(SENTINEL_FILE),
                lines.collect::<String>(),
            )?;
        }
        if options.settable_clock {
            set_clock(&daemon, 0)?;
        }
        let launched = options.clone();
        let ports = match (options.cluster, options.tls) {
            (true, _) => 3,
            (false, Some(_)) => 2,
            (false, None) => 1,
        };
        daemon.start(ports, move |daemon| launch(kind, &launched, daemon))?;
        Ok(Self {
            kind,
            options: options.clone(),
            daemon,
        })
    }

    /// Returns which server this is.
    #[must_use]
    pub fn kind(&self) -> RedisKind {
        self.kind
    }

    /// Returns the address that the server listens on for TLS, if it does.
    #[must_use]
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        let [_, port, _] = self.ports();
        let addr = (Ipv4Addr::LOCALHOST, port).into();
        self.certificates().map(|_| addr)
    }

    /// Returns `redis://127.0.0.1:PORT`, with the password if there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_via(self.addr())
    }

    /// As [`RedisServer::url`], but by way of another address, such as a proxy's.
    #[must_use]
    pub fn url_via(&self, addr: SocketAddr) -> String {
        format!("redis://{}{addr}", self.sign_in())
    }

    /// Returns `rediss://localhost:PORT`, if the server listens for TLS. The authority to trust is in
    /// `Daemon::certificates`.
    #[must_use]
    pub fn tls_url(&self) -> Option<String> {
        let port = self.tls_addr()?.port();
        Some(format!("rediss://{}localhost:{port}", self.sign_in()))
    }

    pub(super) fn sign_in(&self) -> String {
        self.options
            .password
            .as_ref()
            .map(|password| format!(":{password}@"))
            .unwrap_or_default()
    }

    /// Sets the server's wall clock to the host's plus this many milliseconds, at once. The server must have been started with
    /// [`RedisOptions::settable_clock`]; a restart does not set the clock.
    ///
    /// # Errors
    /// The server's folder cannot be written to.
    pub fn set_clock(&self, ahead: i64) -> io::Result<()> {
        set_clock(self, ahead)
    }

    /// Opens a connection to the server by its unix socket.
    ///
    /// # Errors
    /// It does not run, or refuses the password.
    pub fn client(&self) -> io::Result<RedisClient> {
        RedisClient::connect(&self.socket(), self.options.password.as_deref())
    }

    /// Runs one command on a connection of its own: `command(&["GET", "name"])`.
    ///
    /// # Errors
    /// The server's own error, no answer within 30 s, or no connection.
    pub fn command<T: AsRef<[u8]>>(&self, words: &[T]) -> io::Result<Reply> {
        self.client()?.command(words)
    }

    /// Returns a section of INFO. `info("clients")?["connected_clients"]` includes the connection of this
    /// call, and for a moment connections that have just been closed.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn info(&self, section: &str) -> io::Result<BTreeMap<String, String>> {
        let text = self.command(&["INFO", section])?.text().unwrap_or_default();
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Ok(pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }

    /// Returns how often each command ran since the start or `CONFIG RESETSTAT`, by its name in lower case.
    /// The `info` of this method is included.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn calls(&self) -> io::Result<BTreeMap<String, u64>> {
        let calls = self
            .info("commandstats")?
            .into_iter()
            .filter_map(|(name, value)| {
                let calls = value
                    .split(',')
                    .find_map(|pair| pair.strip_prefix("calls="))?;
                Some((
                    name.strip_prefix("cmdstat_")?.to_owned(),
                    calls.parse().ok()?,
                ))
            });
        Ok(calls.collect())
    }

    /// Waits until this replica has the data of its primary and follows it.
    ///
    /// # Errors
    /// It does not within 90 s, or does not answer.
    pub fn wait_for_sync(&self) -> io::Result<()> {
        let follows = found_within(START, || {
            let replication = self.info("replication")?;
            let status = replication.get("master_link_status");
            Ok(status.filter(|status| *status == "up").map(drop))
        })?;
        follows.ok_or_else(|| self.daemon.failed("it does not follow its primary"))
    }

    pub(super) fn bus_port(&self) -> Option<u16> {
        let port = bus_port(self.kind, self);
        self.options.cluster.then_some(port)
    }

    pub(super) fn password(&self) -> Option<&String> {
        self.options.password.as_ref()
    }
}

fn launch(kind: RedisKind, options: &RedisOptions, daemon: &Daemon) -> io::Result<()> {
    // By the unix socket in the server's own folder, since another process might listen on the TCP
    // port. The server opens both before it runs the first command.
    daemon.launch(command(kind, options, daemon)?, || {
        let mut client = RedisClient::connect(&daemon.socket(), options.password.as_deref())?;
        if options.sentinel.is_some() {
            client.command(QUICK_SENTINEL)?;
        }
        client.command(&["PING"]).map(drop)
    })?;
    if options.settable_clock
        && let Some(pid) = daemon.pid()
    {
        // libfaketime makes these for further processes of the same command, and does not remove them after SIGKILL.
        for name in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{name}{pid}"));
        }
    }
    Ok(())
}

fn set_clock(daemon: &Daemon, ahead: i64) -> io::Result<()> {
    let file = daemon.folder().join(CLOCK_FILE);
    // The server reads the file whenever it reads the clock, so the file is replaced as a whole.
    let new = file.with_extension("new");
    let sign = if ahead < 0 { '-' } else { '+' };
    let ahead = Duration::from_millis(ahead.unsigned_abs());
    fs::write(&new, format!("{sign}{:.3}\n", ahead.as_secs_f64()))?;
    fs::rename(new, file)
}

/// Returns the port on which a node of a cluster talks to the others. It cannot be chosen for Redis 6.2.
fn bus_port(kind: RedisKind, daemon: &Daemon) -> u16 {
    let [port, _, bus_port] = daemon.ports();
    match kind {
        RedisKind::Redis6 => port.saturating_add(10_000),
        _ => bus_port,
    }
}

fn command(kind: RedisKind, options: &RedisOptions, daemon: &Daemon) -> io::Result<Command> {
    let mut command = Command::new(daemon.program());
    if options.settable_clock {
        let faketime =
            find::faketime().map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))?;
        // libc's allocator takes the place of jemalloc, which reads the clock while libfaketime starts, and hangs.
        let libraries = format!("{} libc.so.6", faketime.display());
        command
            .env("LD_PRELOAD", libraries)
            .env("FAKETIME_TIMESTAMP_FILE", daemon.folder().join(CLOCK_FILE))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    if options.sentinel.is_some() {
        command.args([SENTINEL_FILE, "--sentinel"]);
    }
    command.args(["--bind", "127.0.0.1", "--protected-mode", "yes"]);
    command.args(["--daemonize", "no", "--save", "", "--appendonly", "no"]);
    let [port, tls_port, _] = daemon.ports();
    command.args(["--port", &port.to_string(), "--unixsocket"]);
    command.arg(daemon.socket());
    command.arg("--dir").arg(daemon.folder());
    // Tests do not wait 5 s for further replicas before a sync.
    command.args(["--repl-diskless-sync-delay", "0"]);
    if kind != RedisKind::Redis6 {
        // Tests use DEBUG SLEEP.
        command.args(["--enable-debug-command", "yes"]);
        if options.cluster {
            let port = bus_port(kind, daemon).to_string();
            command.args(["--cluster-port", &port]);
        }
    }
    if let Some(certificates) = daemon.certificates() {
        command.args([
            "--tls-port",
            &tls_port.to_string(),
            "--tls-auth-clients",
            "no",
        ]);
        for (name, file) in [
            ("ca-cert", &certificates.authority),
            ("cert", &certificates.certificate),
            ("key", &certificates.key),
        ] {
            command.arg(format!("--tls-{name}-file")).arg(file);
        }
    }
    command.args(&options.args);
    Ok(command)
}

impl Deref for RedisServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}
