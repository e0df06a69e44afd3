//! A running MySQL or MariaDB.

use std::fmt;
use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, SystemTime};

use super::{MySqlKind, MySqlOptions, data};
use crate::daemon::{self, Daemon, START};
use crate::tls::Certificates;

/// A server that runs until this is dropped. All methods can be called from any thread.
///
/// The server has one database ([`MySqlServer::DATABASE`]) and one user of it, with
/// `caching_sha2_password` on MySQL and `mysql_native_password` on MariaDB. `root` logs in by the unix
/// socket only, without a password.
pub struct MySqlServer {
    kind: MySqlKind,
    options: MySqlOptions,
    port: u16,
    certificates: Option<Certificates>,
    daemon: Daemon,
}

impl MySqlServer {
    /// The user of [`MySqlServer::url`], with all rights in [`MySqlServer::DATABASE`] and no others.
    pub const USER: &'static str = "keeper";
    /// The user's password.
    pub const PASSWORD: &'static str = "open-sesame";
    /// The database of [`MySqlServer::url`], empty at first.
    pub const DATABASE: &'static str = "shop";

    /// Starts a server and returns when it replies, in a later second than that of its start: the backend
    /// grants no locks before that.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`MySqlKind::ignored`]), or it did not start: its log is in
    /// the error.
    pub fn start(kind: MySqlKind, options: &MySqlOptions) -> io::Result<Self> {
        let program = kind
            .program()
            .map_err(|why| io::Error::new(io::ErrorKind::NotFound, why))?;
        let daemon = Daemon::new(kind.name(), program)?;
        data::fill(kind, daemon.program(), &daemon.folder().join("data"))?;
        let certificates = match options.tls {
            Some(make) => Some(make(daemon.folder())?),
            None => None,
        };
        let mut server = Self {
            kind,
            options: options.clone(),
            port: 0,
            certificates,
            daemon,
        };
        daemon::retry_on_taken_port(|| {
            [server.port] = daemon::free_ports()?;
            server.launch()
        })?;
        let started = second();
        while second() == started {
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Returns which server this is.
    #[must_use]
    pub fn kind(&self) -> MySqlKind {
        self.kind
    }

    /// Returns the version that the server reports: `10.11.6-MariaDB`, `9.7.4`.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn version(&self) -> io::Result<String> {
        let version = greeting(&self.socket())?;
        // MariaDB 10 prefixes its version with that of a MySQL, for old clients.
        Ok(match version.strip_prefix("5.5.5-") {
            Some(version) => version.to_owned(),
            None => version,
        })
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Returns the certificates, if the server speaks TLS.
    #[must_use]
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Returns `mysql://USER:PASSWORD@127.0.0.1:PORT/DATABASE`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_via(self.addr())
    }

    /// As [`MySqlServer::url`], but by way of another address, such as a proxy's.
    #[must_use]
    pub fn url_via(&self, addr: SocketAddr) -> String {
        let (user, password, database) = (Self::USER, Self::PASSWORD, Self::DATABASE);
        format!("mysql://{user}:{password}@{addr}/{database}")
    }

    /// Kills the server if it runs, and starts it on the same port with its data: rows stay; named locks,
    /// sessions and `SET GLOBAL` do not.
    ///
    /// # Errors
    /// The server did not start: its log is in the error.
    pub fn restart(&self) -> io::Result<()> {
        self.kill();
        daemon::retry_on_former_port(|| self.launch())
    }

    fn launch(&self) -> io::Result<()> {
        // By the unix socket in the server's own folder, since another process might listen on the TCP
        // port. The server greets after it has opened both.
        self.daemon
            .launch(self.server(), || greeting(&self.socket()).map(drop))
    }

    fn server(&self) -> Command {
        let mut command = Command::new(self.daemon.program());
        // MySQL accepts this argument in the first place only.
        command.arg("--no-defaults");
        let folder = self.folder();
        for (name, path) in [
            ("datadir", folder.join("data")),
            ("socket", self.socket()),
            ("pid-file", folder.join("pid")),
            ("tmpdir", folder.to_owned()),
        ] {
            command.arg(format!("--{name}={}", path.display()));
        }
        command.arg(format!("--port={}", self.port));
        command.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]);
        command.args(match (self.options.show_locks, self.kind) {
            (true, MySqlKind::MariaDb10) => LISTING_MARIADB,
            (true, MySqlKind::MySql9) => LISTING_MYSQL,
            (false, _) => &["--performance-schema=OFF"],
        });
        if self.kind == MySqlKind::MySql9 {
            command.args(["--mysqlx=OFF", "--secure-file-priv=NULL"]);
        }
        command.args(data::own_files(self.daemon.program()));
        command.args(data::quick(self.kind));
        if let Some(certificates) = &self.certificates {
            for (name, file) in [
                ("ssl-ca", &certificates.authority),
                ("ssl-cert", &certificates.certificate),
                ("ssl-key", &certificates.key),
            ] {
                command.arg(format!("--{name}={}", file.display()));
            }
        }
        command.args(&self.options.args);
        command
    }
}

impl Deref for MySqlServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl fmt::Debug for MySqlServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MySqlServer");
        shown
            .field("kind", &self.kind)
            .field("port", &self.port)
            .field("pid", &self.pid())
            .finish_non_exhaustive()
    }
}

/// Returns the current second, which servers base their numbers on.
fn second() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Makes MariaDB list the named locks.
const LISTING_MARIADB: &[&str] = &[
    "--performance-schema=OFF",
    "--plugin-load-add=metadata_lock_info",
];

/// Makes MySQL list the named locks and nothing else; the whole performance schema takes 200 MB.
const LISTING_MYSQL: &[&str] = &[
    "--performance-schema=ON",
    "--performance-schema-instrument=%=OFF",
    "--performance-schema-instrument=wait/lock/metadata/sql/mdl=ON",
    "--performance-schema-accounts-size=0",
    "--performance-schema-digests-size=0",
    "--performance-schema-error-size=0",
    "--performance-schema-events-stages-history-long-size=0",
    "--performance-schema-events-statements-history-long-size=0",
    "--performance-schema-events-transactions-history-long-size=0",
    "--performance-schema-events-waits-history-long-size=0",
    "--performance-schema-max-memory-classes=0",
    "--performance-schema-max-stage-classes=0",
    "--performance-schema-max-statement-classes=0",
];

/// Reads the version from the greeting that the server sends to each client.
fn greeting(socket: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(START))?;
    // Three bytes of length and one of sequence, then 10 (or 255, and why not), then the version.
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let mut rest = vec![0; usize::from(head[0]).max(1) - 1];
    stream.read_exact(&mut rest)?;
    if head[4] != 10 {
        let said = String::from_utf8_lossy(&rest).into_owned();
        return Err(io::Error::other(said));
    }
    let version = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(version).into_owned())
}
