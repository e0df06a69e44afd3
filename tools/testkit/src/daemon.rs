//! What all servers have in common: the process, its folder and its log.

use std::collections::VecDeque;
use std::env;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::process::Process;
use crate::tls::{Certificates, MakeCertificates};
use crate::until::found_within;
use crate::watchdog::Watchdog;

/// How long a server may take to answer for the first time; Redis needs some 20 ms, MySQL 800.
pub(crate) const START: Duration = Duration::from_secs(90);

/// How many ports are tried when another process takes the chosen one first.
const PORTS: usize = 50;

/// The ports of servers. They are below those of outgoing connections on Linux (`net.ipv4.ip_local_port_range`), so
/// a port is still free when a server restarts.
const SERVER_PORTS: Range<u16> = 12_000..32_000;

/// The process of a server such as [`RedisServer`](crate::RedisServer), in a throw-away folder. All methods can be called from any thread.
pub struct Daemon {
    name: &'static str,
    program: PathBuf,
    /// `None` while the server is killed. It is declared before `folder`, so that the process ends
    /// before the folder is removed.
    process: Mutex<Option<Process>>,
    folder: TempDir,
    /// It is declared last, so that it outlives the folder.
    watchdog: Arc<Watchdog>,
    ports: [u16; 3],
    certificates: Option<Certificates>,
    launch: Launch,
}

/// Starts the process of a daemon on its ports, and returns when it replies.
type Launch = Box<dyn Fn(&Daemon) -> io::Result<()> + Send + Sync>;

impl Daemon {
    /// Makes the folder, and starts no server yet. A missing program is an error.
    pub(crate) fn new(name: &'static str, program: Result<PathBuf, String>) -> io::Result<Self> {
        Self::new_in(&env::temp_dir(), name, program)
    }

    /// Makes the folder in memory (`/dev/shm`) where the system has that, and starts no server yet.
    pub(crate) fn in_memory(
        name: &'static str,
        program: Result<PathBuf, String>,
    ) -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        match memory.is_dir() {
            true => Self::new_in(memory, name, program),
            false => Self::new(name, program),
        }
    }

    fn new_in(
        parent: &Path,
        name: &'static str,
        program: Result<PathBuf, String>,
    ) -> io::Result<Self> {
        let program = program.map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))?;
        // The path is short, since a Unix socket's path has at most some 100 bytes.
        let folder = tempfile::Builder::new().prefix("lk-").tempdir_in(parent)?;
        Ok(Self {
            name,
            program,
            process: Mutex::new(None),
            ports: [0; 3],
            certificates: None,
            launch: Box::new(|_| Err(io::ErrorKind::NotConnected.into())),
            watchdog: Arc::new(Watchdog::start(folder.path())?),
            folder,
        })
    }

    /// Makes the certificates of a server that speaks TLS.
    pub(crate) fn certify(&mut self, make: Option<MakeCertificates>) -> io::Result<()> {
        self.certificates = make.map(|make| make(self.folder())).transpose()?;
        Ok(())
    }

    /// Starts the server for the first time, on as many ports as it needs that are free.
    pub(crate) fn start(
        &mut self,
        ports: usize,
        launch: impl Fn(&Self) -> io::Result<()> + Send + Sync + 'static,
    ) -> io::Result<()> {
        retry_on_taken_port(|| {
            for port in self.ports.iter_mut().take(ports) {
                [*port] = free_ports()?;
            }
            launch(self)
        })?;
        self.launch = Box::new(launch);
        Ok(())
    }

    /// Kills the server if it runs, and starts it on the same ports. It has its data, but a Redis only if it was started
    /// with persistence.
    ///
    /// # Errors
    /// The server did not start: its log is in the error.
    pub fn restart(&self) -> io::Result<()> {
        self.kill();
        // While the server was down, the kernel may have given a port to an outgoing connection, which ends.
        retry_on_former_port(|| (self.launch)(self))
    }

    /// Returns the address that the server listens on, without TLS if that has a port of its own.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        let [port, ..] = self.ports;
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Returns the port of [`addr`](Self::addr), and up to two more for what else the server listens for.
    pub(crate) fn ports(&self) -> [u16; 3] {
        self.ports
    }

    /// Returns the certificates, if the server speaks TLS.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns the throw-away folder that the server runs in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.folder().join("sock")
    }

    fn log_file(&self) -> PathBuf {
        self.folder().join("log")
    }

    /// Returns what the server has printed so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.log_file())
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn process(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process id, `None` while the server is killed.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(Process::id)
    }

    /// Kills the server and its child processes (SIGKILL) at one moment, and returns when it has ended. Does
    /// nothing if it was killed before.
    pub fn kill(&self) {
        if let Some(mut process) = self.process().take() {
            note_used(&mut used(), &self.ports);
            // All are stopped first: otherwise a child process could still answer after the others have
            // ended.
            let _ = process.stop();
        }
    }

    /// Ends the server by SIGTERM, and returns when it has ended.
    ///
    /// # Errors
    /// The server does not run.
    pub fn end(&self) -> io::Result<()> {
        note_used(&mut used(), &self.ports);
        self.running(Process::end)
    }

    /// Stops the server (SIGSTOP) and returns when it has stopped. Connections stay open without replies.
    ///
    /// # Errors
    /// The server does not run.
    pub fn stop(&self) -> io::Result<()> {
        self.running(Process::stop)
    }

    /// Continues the server after [`stop`](Self::stop).
    ///
    /// # Errors
    /// The server does not run.
    pub fn cont(&self) -> io::Result<()> {
        self.running(Process::cont)
    }

    fn running(&self, act: impl FnOnce(&mut Process) -> io::Result<()>) -> io::Result<()> {
        match self.process().as_mut() {
            Some(process) => act(process),
            None => Err(io::Error::other("the server has been killed")),
        }
    }

    /// Makes an error that contains the server's log.
    pub(crate) fn failed(&self, what: &str) -> io::Error {
        io::Error::other(format!(
            "{} ({}): {what}. Its log:\n{}",
            self.name,
            self.program.display(),
            self.log()
        ))
    }

    /// Starts `command` in the folder and returns when `ready` succeeds. The error is of the kind
    /// [`io::ErrorKind::AddrInUse`] if another process has the port.
    pub(crate) fn launch(
        &self,
        mut command: Command,
        mut ready: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut running = self.process();
        let _ = fs::remove_file(self.socket());
        // The lock file beside MySQL's socket names the process that was killed. Another process may have its id by now.
        let _ = fs::remove_file(self.socket().with_extension("lock"));
        let _ = fs::remove_file(self.log_file());
        let mut process = Process::spawn(
            &mut command,
            self.folder(),
            &self.log_file(),
            &self.watchdog,
        )?;
        let mut last = String::new();
        let started = found_within(START, || {
            let Err(error) = ready() else {
                return Ok(Some(true));
            };
            last = format!("it does not reply: {error}");
            let Some(status) = process.exited()? else {
                return Ok(None);
            };
            last = format!("it ended with {status}");
            Ok(Some(false))
        })?;
        if started == Some(true) {
            *running = Some(process);
            return Ok(());
        }
        let taken = self.log().to_lowercase().contains("address already in use");
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
}

impl fmt::Debug for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Daemon");
        shown
            .field("name", &self.name)
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

/// The size of the range from which one process takes its ports.
const OWN_PORTS: u16 = 2_000;

/// The first port of the range of this process, and the file whose lock keeps other processes out of that range.
///
/// If all ranges are in use, this process shares one.
static OWN_RANGE: LazyLock<(u16, Option<File>)> = LazyLock::new(|| {
    let ranges = (SERVER_PORTS.end - SERVER_PORTS.start) / OWN_PORTS;
    let own = u16::try_from(std::process::id() % u32::from(ranges)).unwrap_or_default();
    let locked = |range: u16| {
        // The same folder for all processes, whatever their TMPDIR.
        let path = format!("/tmp/lockkeeper-testkit-ports-{range}");
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .ok()?;
        file.try_lock().is_ok().then_some((range, file))
    };
    let free = (0..ranges).find_map(|step| locked((own + step) % ranges));
    let (range, file) = free.map_or((own, None), |(range, file)| (range, Some(file)));
    (SERVER_PORTS.start + range * OWN_PORTS, file)
});

/// The ports that this process has drawn, and those of servers that it has killed or ended. The latest are at the back.
static USED: Mutex<VecDeque<u16>> = Mutex::new(VecDeque::new());

/// Adds ports at the back, so that most of the others are drawn before them. A server has 0 for a port that it does not
/// need.
fn note_used(used: &mut VecDeque<u16>, ports: &[u16]) {
    used.extend(ports.iter().filter(|port| **port > 0));
    let most = usize::from(OWN_PORTS) * 3 / 4;
    used.drain(..used.len().saturating_sub(most));
}

fn used() -> MutexGuard<'static, VecDeque<u16>> {
    USED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns different ports that were free just now. Another process may take one before the server does.
///
/// When a test stops its server for a while, another test's server could take the port. So each process draws from
/// its own range of ports, as far as the ranges suffice. It uses no port again before it has used most of the
/// others.
pub(crate) fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let first = OWN_RANGE.0;
    let mut used = used();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = retry_on_taken_port(|| {
            let port = fastrand::u16(first..first + OWN_PORTS);
            match used.contains(&port) {
                true => Err(io::ErrorKind::AddrInUse.into()),
                false => TcpListener::bind((Ipv4Addr::LOCALHOST, port)),
            }
        })?;
        *port = listener.local_addr()?.port();
        note_used(&mut used, &[*port]);
    }
    Ok(ports)
}

/// Repeats `launch` while another process has the port.
pub(crate) fn retry_on_taken_port<T>(mut launch: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut last = launch();
    for _ in 1..PORTS {
        match &last {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = launch(),
            _ => break,
        }
    }
    last
}

/// Repeats `launch` on the server's former port. While the server was down, the kernel may have given
/// that port to an outgoing connection, which ends by itself.
pub(crate) fn retry_on_former_port(mut launch: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    retry_on_taken_port(|| {
        let launched = launch();
        if matches!(&launched, Err(error) if error.kind() == io::ErrorKind::AddrInUse) {
            thread::sleep(Duration::from_millis(100));
        }
        launched
    })
}
