//! PgBouncer, which hands out a server's sessions to its clients.

use std::fs;
use std::io;
use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use super::PostgresServer;
use super::user::ServerUser;
use crate::daemon::Daemon;
use crate::find;
#[cfg(feature = "tls")]
use crate::tls::Certificates;

/// How long a client keeps a session of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolMode {
    /// Until it disconnects.
    Session,
    /// Until its transaction ends.
    Transaction,
    /// Until its statement ends.
    Statement,
}

impl PoolMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Session, Self::Transaction, Self::Statement];

    fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Transaction => "transaction",
            Self::Statement => "statement",
        }
    }
}

/// A PgBouncer in front of a server, which runs until this is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    daemon: Daemon,
}

impl PgBouncer {
    /// Starts a PgBouncer and returns when it takes connections.
    ///
    /// # Errors
    /// There is no PgBouncer on this machine (see [`PgBouncer::ignored`]), or it did not start: its log is in the
    /// error.
    pub fn start(server: &PostgresServer, mode: PoolMode) -> io::Result<Self> {
        Self::start_with(server, mode, |_| Ok(String::new()))
    }

    /// Starts a PgBouncer that opens one session on the server.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_one_session(server: &PostgresServer, mode: PoolMode) -> io::Result<Self> {
        Self::start_with(server, mode, |_| Ok("default_pool_size=1\n".to_owned()))
    }

    /// Starts a PgBouncer that refuses clients without TLS.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    #[cfg(feature = "tls")]
    pub fn start_with_required_tls(server: &PostgresServer, mode: PoolMode) -> io::Result<Self> {
        Self::start_with(server, mode, |folder| {
            let files = Certificates::make(folder)?;
            Ok(format!(
                "client_tls_sslmode=require\nclient_tls_cert_file={}\nclient_tls_key_file={}\n",
                files.certificate.display(),
                files.key.display()
            ))
        })
    }

    fn start_with(
        server: &PostgresServer,
        mode: PoolMode,
        settings: impl FnOnce(&Path) -> io::Result<String>,
    ) -> io::Result<Self> {
        let user = ServerUser::find()?;
        let mut daemon = Daemon::new("pgbouncer", program())?;
        let (name, password) = (PostgresServer::USER, PostgresServer::PASSWORD);
        let users = format!("\"{name}\" \"{password}\"\n");
        fs::write(daemon.folder().join("users"), users)?;
        let settings = settings(daemon.folder())?;
        let (to, mode) = (server.addr().port(), mode.name());
        daemon.start(1, move |daemon| {
            let port = daemon.addr().port();
            fs::write(
                daemon.folder().join("conf"),
                format!(
                    "[databases]\n* = host=127.0.0.1 port={to}\n[pgbouncer]\nlisten_addr=127.0.0.1\n\
                     listen_port={port}\nunix_socket_dir=\npool_mode={mode}\nauth_type=scram-sha-256\n\
                     auth_file=users\nserver_login_retry=0.1\n{settings}"
                ),
            )?;
            user.give(daemon.folder())?;
            let mut command = user.command(daemon.program());
            command.arg("conf");
            daemon.launch(command, || TcpStream::connect(daemon.addr()).map(drop))
        })?;
        Ok(Self { daemon })
    }

    /// Returns why tests with PgBouncer are shown as ignored, `None` when they run. In continuous integration
    /// (`CI` is set) they always run, and fail where it is missing.
    #[must_use]
    pub fn ignored() -> Option<String> {
        find::ignored(program)
    }
}

fn program() -> Result<PathBuf, String> {
    let found = find::on_path("pgbouncer").into_iter().next();
    found.ok_or_else(|| "no pgbouncer on this machine; scripts/servers sets it up".to_owned())
}

impl Deref for PgBouncer {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        &self.daemon
    }
}
