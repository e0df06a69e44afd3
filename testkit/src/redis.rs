//! Redis and Valkey.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::find;
use crate::process::Process;
use crate::resp::{RedisClient, Reply};
use crate::tls::Certificates;

/// How long a server may take to answer its first PING; it needs some 20 ms.
const START: Duration = Duration::from_secs(20);

/// How often another port is tried when somebody else was quicker to take it.
const PORTS: usize = 20;

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RedisKind {
    /// Redis 7.x, as Debian 12 and Ubuntu 24.04 have it.
    Redis7,
    /// Redis 8.x.
    Redis8,
    /// Valkey 9.x.
    Valkey9,
}

impl RedisKind {
    /// All that `scripts/servers` sets up.
    pub const ALL: [Self; 3] = [Self::Redis7, Self::Redis8, Self::Valkey9];

    /// `redis-7`, `redis-8`, `valkey-9`: for the names of tests.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis7 => "redis-7",
            Self::Redis8 => "redis-8",
            Self::Valkey9 => "valkey-9",
        }
    }

    /// How its `--version` begins.
    fn banner(self) -> &'static str {
        match self {
            Self::Redis7 => "Redis server v=7.",
            Self::Redis8 => "Redis server v=8.",
            Self::Valkey9 => "Valkey server v=9.",
        }
    }

    /// The program: `LOCKKEEPER_REDIS_SERVER`, what `scripts/servers` unpacked, or one on PATH;
    /// the first that says it is this kind. Looked for once per process.
    ///
    /// # Errors
    /// There is none: what was found instead, and what to do.
    pub fn program(self) -> Result<PathBuf, String> {
        static FOUND: OnceLock<Vec<(PathBuf, Result<String, String>)>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let folder = find::servers_folder();
            std::env::var_os("LOCKKEEPER_REDIS_SERVER")
                .filter(|program| !program.is_empty())
                .map(PathBuf::from)
                .into_iter()
                .chain([
                    folder.join("redis-8/redis-server"),
                    folder.join("valkey-9/valkey-server"),
                ])
                .chain(find::on_path("redis-server"))
                .chain(find::on_path("valkey-server"))
                .map(|program| (find::version_of(&program), program))
                .map(|(version, program)| (program, version))
                .collect()
        });
        for (program, version) in found {
            if version
                .as_ref()
                .is_ok_and(|version| version.starts_with(self.banner()))
            {
                return Ok(program.clone());
            }
        }
        let seen: Vec<String> = found
            .iter()
            .filter_map(|(program, version)| Some((program, version.as_ref().ok()?)))
            .map(|(program, version)| {
                let version: Vec<&str> = version.split_whitespace().take(3).collect();
                format!("{} is {}", program.display(), version.join(" "))
            })
            .collect();
        let seen = if seen.is_empty() {
            "no redis or valkey server found".to_owned()
        } else {
            seen.join(", ")
        };
        Err(format!(
            "no {} on this machine ({seen}); scripts/servers sets it up",
            self.name()
        ))
    }

    /// Why tests with this server are to show as ignored; `None` when they are to run. In continuous
    /// integration (`CI` is set) they always run, and fail where the server is missing.
    #[must_use]
    pub fn ignored(self) -> Option<String> {
        if find::in_ci() {
            None
        } else {
            self.program().err()
        }
    }
}

impl fmt::Display for RedisKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    args: Vec<String>,
    password: Option<String>,
    tls: bool,
}

impl RedisOptions {
    /// Without password, without TLS, without persistence.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of the server's configuration: `config("maxmemory", ["1mb"])`. It comes after the kit's own.
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

    /// The default user's password; the kit's own commands sign in with it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config("requirepass", [password])
            .config("masterauth", [password])
    }

    /// Listens for TLS on a second port, with certificates made for it; clients need none.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// A read-only replica of `primary`; [`RedisServer::wait_for_sync`] waits for its first copy.
    #[must_use]
    pub fn replica_of(self, primary: &RedisServer) -> Self {
        let replica = self.config(
            "replicaof",
            ["127.0.0.1".to_owned(), primary.addr().port().to_string()],
        );
        match &primary.options.password {
            Some(password) => replica.config("masterauth", [password]),
            None => replica,
        }
    }
}

/// A server that runs until this is dropped. All methods can be called from any thread.
pub struct RedisServer {
    kind: RedisKind,
    program: PathBuf,
    options: RedisOptions,
    port: u16,
    tls: Option<(u16, Certificates)>,
    /// `None` while it is killed. Before `folder`, so that it has ended when that is removed.
    process: Mutex<Option<Process>>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a server and returns when it answers.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`RedisKind::ignored`]), or it did not start: its own
    /// words are in the error.
    pub fn start(kind: RedisKind, options: &RedisOptions) -> io::Result<Self> {
        let program = kind
            .program()
            .map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))?;
        // Short, because a unix socket's path is at most some 100 bytes.
        let folder = tempfile::Builder::new().prefix("lk-").tempdir()?;
        let tls = if options.tls {
            Some((0, Certificates::make(folder.path())?))
        } else {
            None
        };
        let mut server = Self {
            kind,
            program,
            options: options.clone(),
            port: 0,
            tls,
            process: Mutex::new(None),
            folder,
        };
        for _ in 1..PORTS {
            server.choose_ports()?;
            match server.launch() {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
        Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            format!("{kind}: {PORTS} free ports were taken before it"),
        ))
    }

    /// Which server this is.
    #[must_use]
    pub fn kind(&self) -> RedisKind {
        self.kind
    }

    /// The version, as the server itself says it.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn version(&self) -> io::Result<String> {
        let mut info = self.info("server")?;
        // Valkey also says which Redis it stands for.
        let version = info
            .remove("valkey_version")
            .or_else(|| info.remove("redis_version"));
        version.ok_or_else(|| io::Error::other("no version in INFO server"))
    }

    /// Where it listens without TLS.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Where it listens for TLS, if it was asked to.
    #[must_use]
    pub fn tls_addr(&self) -> Option<SocketAddr> {
        self.tls
            .as_ref()
            .map(|(port, _)| (Ipv4Addr::LOCALHOST, *port).into())
    }

    /// The certificates of the TLS port, if there is one.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// The unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// The throw-away folder it runs in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// `redis://127.0.0.1:PORT`, with the password where there is one.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_via(self.addr())
    }

    /// As [`RedisServer::url`], by way of another address: a proxy's.
    #[must_use]
    pub fn url_via(&self, addr: SocketAddr) -> String {
        format!("redis://{}{addr}", self.sign_in())
    }

    /// `rediss://localhost:PORT`, if it listens for TLS. The authority to trust is in
    /// [`RedisServer::certificates`].
    #[must_use]
    pub fn tls_url(&self) -> Option<String> {
        self.tls
            .as_ref()
            .map(|(port, _)| format!("rediss://{}localhost:{port}", self.sign_in()))
    }

    fn sign_in(&self) -> String {
        self.options
            .password
            .as_ref()
            .map(|password| format!(":{password}@"))
            .unwrap_or_default()
    }

    /// Its process id; `None` while it is killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    /// Kills it (SIGKILL) and returns when it has ended. Killed already: does nothing.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Stops it (SIGSTOP): connections stay, nothing is answered.
    ///
    /// # Errors
    /// It does not run.
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`RedisServer::stop`].
    ///
    /// # Errors
    /// It does not run.
    pub fn cont(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills it if it runs, and starts it on the same ports. It comes back empty, unless it was started
    /// with persistence.
    ///
    /// # Errors
    /// It did not start: its own words are in the error.
    pub fn restart(&self) -> io::Result<()> {
        self.kill();
        let mut last = self.launch();
        // While it was down, its port may have become the near end of somebody's connection.
        for _ in 1..PORTS {
            match &last {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    thread::sleep(Duration::from_millis(100));
                    last = self.launch();
                }
                _ => break,
            }
        }
        last
    }

    /// A connection of its own to the server, by its unix socket.
    ///
    /// # Errors
    /// It does not run, or refuses the password.
    pub fn client(&self) -> io::Result<RedisClient> {
        RedisClient::connect(&self.socket(), self.options.password.as_deref())
    }

    /// One command on a connection of its own: `command(&["GET", "name"])`.
    ///
    /// # Errors
    /// The server's own error, no answer within 10 s, or no connection.
    pub fn command<T: AsRef<[u8]>>(&self, words: &[T]) -> io::Result<Reply> {
        self.client()?.command(words)
    }

    /// A section of INFO: `info("clients")?["connected_clients"]` counts the one that asks, and for a
    /// moment those that have just been closed.
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

    /// How often each command ran since the start or `CONFIG RESETSTAT`, by its name in small letters.
    /// The kit's own `info` is among them.
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

    /// Waits until this replica has its primary's data and follows it.
    ///
    /// # Errors
    /// It has not within 20 s, or does not answer.
    pub fn wait_for_sync(&self) -> io::Result<()> {
        let until = Instant::now() + START;
        while self
            .info("replication")?
            .get("master_link_status")
            .map(String::as_str)
            != Some("up")
        {
            if Instant::now() > until {
                return Err(self.failed("it does not follow its primary"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// What the server has printed so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.log_file())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        match self.process().as_mut() {
            Some(process) => process.signal(signal),
            None => Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "the server has been killed",
            )),
        }
    }

    /// Numbers that were free a moment ago; whether they still are, the server finds out.
    fn choose_ports(&mut self) -> io::Result<()> {
        // Both held at once, so that they differ.
        let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let tls = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        self.port = plain.local_addr()?.port();
        if let Some((port, _)) = &mut self.tls {
            *port = tls.local_addr()?.port();
        }
        Ok(())
    }

    fn launch(&self) -> io::Result<()> {
        let mut running = self.process();
        let _ = fs::remove_file(self.socket());
        let _ = fs::remove_file(self.log_file());
        let mut process = Process::spawn(&mut self.server(), self.folder.path(), &self.log_file())?;
        let until = Instant::now() + START;
        // By the unix socket, which is in the server's own folder: on a TCP port somebody else might answer.
        // Both are open before the first command is served.
        let mut last = loop {
            let error = match self
                .client()
                .and_then(|mut client| client.command(&["PING"]))
            {
                Ok(_) => {
                    *running = Some(process);
                    return Ok(());
                }
                Err(error) => error,
            };
            if let Some(status) = process.exited()? {
                break format!("it ended with {status}");
            }
            if Instant::now() > until {
                break format!("it does not answer: {error}");
            }
            thread::sleep(Duration::from_millis(2));
        };
        let taken = self.log().contains("Address already in use");
        drop(process);
        if taken {
            last.push_str(", its port was taken");
        }
        let kind = if taken {
            io::ErrorKind::AddrInUse
        } else {
            io::ErrorKind::Other
        };
        Err(io::Error::new(kind, self.failed(&last)))
    }

    fn failed(&self, what: &str) -> io::Error {
        io::Error::other(format!(
            "{} ({}): {what}. It said:\n{}",
            self.kind,
            self.program.display(),
            self.log()
        ))
    }

    fn server(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args([
            "--bind",
            "127.0.0.1",
            "--protected-mode",
            "yes",
            "--daemonize",
            "no",
        ]);
        command
            .args(["--port", &self.port.to_string(), "--unixsocket"])
            .arg(self.socket());
        command
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(self.folder.path());
        // Tests put a server to sleep by DEBUG SLEEP, and do not wait 5 s for more replicas to come.
        command.args([
            "--enable-debug-command",
            "yes",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        if let Some((port, certificates)) = &self.tls {
            command.args(["--tls-port", &port.to_string(), "--tls-auth-clients", "no"]);
            command
                .arg("--tls-ca-cert-file")
                .arg(&certificates.authority);
            command
                .arg("--tls-cert-file")
                .arg(&certificates.certificate);
            command.arg("--tls-key-file").arg(&certificates.key);
        }
        command.args(&self.options.args);
        command
    }
}

impl fmt::Debug for RedisServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RedisServer");
        shown
            .field("kind", &self.kind)
            .field("port", &self.port)
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}
