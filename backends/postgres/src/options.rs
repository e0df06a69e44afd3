//! The options of a PostgreSQL server.

use std::error::Error as StdError;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Endpoint, RemoteOptions, Supplier, Transport, remote_setters};

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "postgres";

/// Where a server is, and how to talk to it. `Debug` shows no password.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub(crate) remote: RemoteOptions,
    database: Option<String>,
    pub(crate) supplier: Option<Supplier<Transport>>,
}

impl PostgresOptions {
    /// The port of a server by default.
    pub const DEFAULT_PORT: u16 = 5432;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        Self {
            remote,
            database: None,
            supplier: None,
        }
    }

    /// A server at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::new(RemoteOptions::new(Endpoint::tcp(host, port)))
    }

    /// A server at a Unix socket, such as `/run/postgresql/.s.PGSQL.5432`.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::new(RemoteOptions::new(Endpoint::Unix(path.into())))
    }

    remote_setters!(
        "Encrypts, and checks the server's certificate by the certificates in `ca_file` (PEM), or by the system's if that is `None`. Not for Unix sockets."
    );

    /// The database to be in. Default: the one with the user's name. Each database has locks of its own.
    #[must_use]
    pub fn database(mut self, database: impl Into<String>) -> Self {
        self.database = Some(database.into());
        self
    }

    /// Lets the application connect: by a tunnel, or with TLS of its choice. The provider logs in on the byte stream, so the
    /// user, the password and the database are those of these options. Their address names the server for people, and with
    /// [`tls`](Self::tls) its host is the one of the server's certificate.
    ///
    /// `connect` gets the time that it may take: a stream that comes later is closed. A stream is checked as one that the
    /// provider connects. [`ErrorKind::Incompatible`] is the answer to one that leads to another server than the first one.
    /// While `connect` fails, the store is unavailable.
    ///
    /// Connections of the crate `postgres` or of Diesel cannot hold locks: a call of theirs has no limit of time.
    ///
    /// ```no_run
    /// use std::net::TcpStream;
    /// use lockkeeper_postgres::{PostgresOptions, PostgresProvider, Transport};
    ///
    /// let tunnel = "127.0.0.1:15432".parse().unwrap();
    /// let options = PostgresOptions::tcp("db.internal", 5432)
    ///     .user("shop")
    ///     .password("secret")
    ///     .connect_with(move |limit| {
    ///         TcpStream::connect_timeout(&tunnel, limit).map(Transport::new)
    ///     });
    /// let provider = PostgresProvider::open(&options, "shop")?;
    /// # Ok::<(), lockkeeper_core::Error>(())
    /// ```
    #[must_use]
    pub fn connect_with<E: StdError + Send + Sync + 'static>(
        mut self,
        connect: impl Fn(Duration) -> Result<Transport, E> + Send + Sync + 'static,
    ) -> Self {
        self.supplier = Some(Supplier::new(connect));
        self
    }

    /// Returns the database: an advisory lock belongs to one.
    pub(crate) fn name_of_database(&self) -> &str {
        let user = self.remote.user.as_deref();
        self.database.as_deref().or(user).unwrap_or_default()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.remote.check()?;
        let texts = [&self.remote.user, &self.remote.password, &self.database];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            return Err(invalid(
                "`user`, `password` and `db` take no NUL; leave it out",
            ));
        }
        if self.remote.user.as_deref().unwrap_or_default().is_empty() {
            return Err(invalid(
                "the URL names no user; write postgres://USER:PASSWORD@HOST/DATABASE, or give `user`",
            ));
        }
        Ok(())
    }
}

fn invalid(text: &str) -> Error {
    Error::new(ErrorKind::InvalidValue, text)
}
