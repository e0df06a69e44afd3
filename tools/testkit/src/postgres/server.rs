//! A running PostgreSQL.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::client::Superuser;
use super::user::ServerUser;
use super::{PostgresKind, PostgresOptions, data};
use crate::daemon::Daemon;
use crate::template;

/// A server that runs until this is dropped. All methods can be called from any thread.
///
/// The server has one database ([`PostgresServer::DATABASE`]) and one user who owns it. The superuser `postgres` logs
/// in by the unix socket only, without a password.
#[derive(Debug)]
pub struct PostgresServer {
    kind: PostgresKind,
    options: PostgresOptions,
    daemon: Daemon,
}

impl PostgresServer {
    /// The user of [`PostgresServer::url`], who owns [`PostgresServer::DATABASE`] and has no other rights.
    pub const USER: &'static str = "keeper";
    /// The user's password.
    pub const PASSWORD: &'static str = "open-sesame";
    /// The database of [`PostgresServer::url`], empty at first.
    pub const DATABASE: &'static str = "shop";

    /// Starts a server and returns when it replies.
    ///
    /// # Errors
    /// There is no such server on this machine (see [`PostgresKind::ignored`]), or it did not start: its log is
    /// in the error.
    pub fn start(kind: PostgresKind, options: &PostgresOptions) -> io::Result<Self> {
        Self::start_on(kind, options, |program, user, folder| {
            data::fill(kind, program, user, folder)
        })
    }

    /// Starts a standby that streams from this server, and takes over with `SELECT pg_promote()`.
    ///
    /// # Errors
    /// The standby did not start: its log is in the error.
    pub fn standby(&self) -> io::Result<Self> {
        Self::start_on(self.kind, &self.options, |program, user, folder| {
            data::back_up(self, program, user, folder)
        })
    }

    fn start_on(
        kind: PostgresKind,
        options: &PostgresOptions,
        fill: impl FnOnce(&Path, ServerUser, &Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let user = ServerUser::find()?;
        let mut daemon = Daemon::new(kind.name(), kind.program())?;
        let folder = daemon.folder().join("data");
        user.give(daemon.folder())?;
        fill(daemon.program(), user, &folder)?;
        fs::write(folder.join("pg_hba.conf"), logins(options.login))?;
        daemon.certify(options.tls)?;
        if let Some(certificates) = daemon.certificates() {
            private(&certificates.key)?;
        }
        user.give(daemon.folder())?;
        let settings = options.settings.clone();
        daemon.start(1, move |daemon| launch(user, &settings, daemon))?;
        Ok(Self {
            kind,
            options: options.clone(),
            daemon,
        })
    }

    /// Returns which server this is.
    #[must_use]
    pub fn kind(&self) -> PostgresKind {
        self.kind
    }

    /// Returns the path of the unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        socket(self)
    }

    /// Returns `postgres://USER:PASSWORD@127.0.0.1:PORT/DATABASE`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_via(self.addr())
    }

    /// As [`PostgresServer::url`], but by way of another address, such as a proxy's.
    #[must_use]
    pub fn url_via(&self, addr: SocketAddr) -> String {
        let (user, password, database) = (Self::USER, Self::PASSWORD, Self::DATABASE);
        format!("postgres://{user}:{password}@{addr}/{database}")
    }
}

/// Returns the path of the unix socket, which has the port in its name.
fn socket(daemon: &Daemon) -> PathBuf {
    let port = daemon.addr().port();
    daemon.folder().join(format!(".s.PGSQL.{port}"))
}

fn launch(user: ServerUser, settings: &[(String, String)], daemon: &Daemon) -> io::Result<()> {
    // By the unix socket in the server's own folder, since another process might listen on the TCP port.
    let ready = || Superuser::connect(&socket(daemon)).map(drop);
    let launched = daemon.launch(command(user, settings, daemon), ready);
    launched.map_err(|error| {
        // The sessions of a killed server end by themselves, and the next server waits for that.
        if error.to_string().contains(STILL_THERE) {
            io::Error::new(io::ErrorKind::AddrInUse, error)
        } else {
            error
        }
    })?;
    free_segment(daemon)
}

/// Marks the server's System V memory segment for removal: the kernel removes it with the last process that uses it. A
/// killed server would leave it behind, and a system has at most 4,096.
fn free_segment(daemon: &Daemon) -> io::Result<()> {
    let text = fs::read_to_string(daemon.folder().join("data/postmaster.pid"))?;
    // The seventh line has the segment's key and id.
    let id = text
        .lines()
        .nth(6)
        .and_then(|line| line.split_whitespace().nth(1));
    let id = id.ok_or_else(|| daemon.failed("its memory segment is unknown"))?;
    template::run(Command::new("ipcrm").args(["-m", id]), "")
}

fn command(user: ServerUser, settings: &[(String, String)], daemon: &Daemon) -> Command {
    let mut command = user.command(daemon.program());
    command.arg("-D").arg(daemon.folder().join("data"));
    let socket_folder = daemon.folder().display().to_string();
    let port = daemon.addr().port().to_string();
    let own = [
        ("port", &*port),
        ("unix_socket_directories", &*socket_folder),
        ("listen_addresses", "127.0.0.1"),
    ];
    let quick = [
        ("fsync", "off"),
        ("shared_buffers", "16MB"),
        ("max_connections", "250"),
        // In the folder, which is removed also when the server is killed.
        ("dynamic_shared_memory_type", "mmap"),
        // What a test looks at is there at once.
        ("stats_fetch_consistency", "none"),
        ("timezone", "UTC"),
        ("log_timezone", "UTC"),
    ];
    let chosen = settings.iter().map(|(name, value)| (&**name, &**value));
    for (name, value) in own.into_iter().chain(quick).chain(chosen) {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    if let Some(certificates) = daemon.certificates() {
        command.args(["-c", "ssl=on"]);
        for (name, file) in [
            ("ssl_ca_file", &certificates.authority),
            ("ssl_cert_file", &certificates.certificate),
            ("ssl_key_file", &certificates.key),
        ] {
            command.arg("-c").arg(format!("{name}={}", file.display()));
        }
    }
    command
}

/// What a server says that was started before the last session of its killed predecessor had ended.
const STILL_THERE: &str = "pre-existing shared memory block";

/// Returns a pg_hba.conf by which the user logs in by `method`.
fn logins(method: &str) -> String {
    let user = PostgresServer::USER;
    format!(
        "local all,replication postgres trust\nlocal all all {method}\nhost all {user} 127.0.0.1/32 {method}\n"
    )
}

/// Makes a file readable by its owner alone.
fn private(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o600))
}

impl Deref for PostgresServer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // After the crash of a session, the server has a new one.
        let _ = free_segment(self);
    }
}
