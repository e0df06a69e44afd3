//! The options of a MySQL or MariaDB server.
//!
//! The mysql crate encrypts the password with the key that the server sends, unless it has a file of that key. So
//! it always gets a path, if need be that of no file.

use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::ops::DerefMut;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Endpoint, RemoteOptions, Supplier, remote_setters};
#[cfg(feature = "tls")]
use mysql::ClientIdentity;
use mysql::Conn;
use mysql::{Opts, OptsBuilder};
use mysql_common::crypto::encrypt;

use crate::connection::wire::AnyConn;

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "mysql";

/// A path that names no file. The mysql crate reads the server's key only if the server asks for the password.
/// Without a path, it would ask the server for a key.
const NO_FILE: &str = "";

/// The options of a server. `Debug` shows no password.
#[derive(Clone)]
pub struct MySqlOptions {
    pub(crate) remote: RemoteOptions,
    /// All that `remote` does not say.
    base: Opts,
    pub(crate) supplier: Option<Supplier<AnyConn>>,
}

impl MySqlOptions {
    /// The port of a server by default.
    pub const DEFAULT_PORT: u16 = 3306;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        Self {
            remote,
            base: Opts::default(),
            supplier: None,
        }
    }

    /// A server that the application has connection options for. A pool of its own is made from
    /// them. It takes over the address, the user, the TLS, the database, and the statements that are
    /// run on connecting.
    pub fn from_opts(opts: impl Into<Opts>) -> Self {
        let base = opts.into();
        let mut remote = RemoteOptions::new(match base.get_socket() {
            Some(path) => Endpoint::Unix(path.into()),
            None => Endpoint::tcp(base.get_ip_or_hostname(), base.get_tcp_port()),
        });
        remote.user = base.get_user().map(str::to_owned);
        remote.password = base.get_pass().map(str::to_owned);
        if let Some(ssl) = base.get_ssl_opts() {
            remote.tls = true;
            remote.ca_file = ssl.root_cert_path().map(PathBuf::from);
        }
        Self {
            base,
            ..Self::new(remote)
        }
    }

    /// Returns the connection options, for connections of the application's own.
    ///
    /// Without TLS, they give the password only to a server with a known public key: see [`server_key`](Self::server_key).
    pub fn opts(&self) -> Opts {
        let remote = &self.remote;
        let key = self
            .base
            .get_server_key_path()
            .unwrap_or(Path::new(NO_FILE));
        let opts = OptsBuilder::from_opts(self.base.clone())
            .server_key_path(Some(key.into()))
            .user(remote.user.clone())
            .pass(remote.password.clone())
            .ssl_opts(remote.tls.then(|| {
                let ssl = self.base.get_ssl_opts().cloned().unwrap_or_default();
                #[cfg(feature = "tls")]
                let ssl = match remote.client_certificate.clone() {
                    Some((certificate, key)) => {
                        ssl.with_client_identity(Some(ClientIdentity::new(certificate, key)))
                    }
                    None => ssl,
                };
                ssl.with_root_cert_path(remote.ca_file.clone())
            }));
        match &remote.endpoint {
            Endpoint::Unix(path) => opts.socket(Some(path.to_string_lossy())),
            Endpoint::Tcp { host, port } => {
                opts.ip_or_hostname(Some(bracketed(host))).tcp_port(*port)
            }
        }
        .into()
    }

    /// A server at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::new(RemoteOptions::new(Endpoint::tcp(host, port)))
    }

    /// A server at a Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::new(RemoteOptions::new(Endpoint::Unix(path.into())))
    }

    remote_setters!(
        "Encrypts, and checks the server's certificate by the authorities that browsers trust (Mozilla's list, built in) and by the certificates in `ca_file` (PEM). Not for Unix sockets."
    );

    /// The database to be in. Default: none. It makes no difference to locks, which all databases of a
    /// server share.
    #[must_use]
    pub fn database(mut self, database: impl Into<String>) -> Self {
        let base = OptsBuilder::from_opts(self.base);
        self.base = base.db_name(Some(database.into())).into();
        self
    }

    /// Lets the application make the connections: by a tunnel, with passwords that change, or with TLS of its choice.
    /// The address of these options names the server for people only.
    ///
    /// `connect` gets the time that it may take: a connection that comes later is closed. A provider keeps up to
    /// [`pool_size`](Self::pool_size) connections open.
    ///
    /// A session is checked before it is used. [`ErrorKind::Incompatible`](lockkeeper_core::ErrorKind::Incompatible)
    /// is the answer to a session without autocommit, in a transaction, or of another server than the first one. It
    /// is also the answer to a proxy that shares out sessions. While `connect` fails, the store is unavailable.
    ///
    /// ```no_run
    /// use lockkeeper_mysql::{Conn, MySqlOptions, MySqlProvider, Opts};
    ///
    /// let opts = Opts::from_url("mysql://shop:secret@127.0.0.1:13306/").unwrap();
    /// let options = MySqlOptions::tcp("db.internal", 3306)
    ///     .connect_with(move |_limit| Conn::new(opts.clone()));
    /// let provider = MySqlProvider::open(&options, "shop")?;
    /// # Ok::<(), lockkeeper_core::Error>(())
    /// ```
    #[must_use]
    pub fn connect_with<E: StdError + Send + Sync + 'static>(
        mut self,
        connect: impl Fn(Duration) -> Result<Conn, E> + Send + Sync + 'static,
    ) -> Self {
        let boxed = move |limit| connect(limit).map(|conn| Box::new(Box::new(conn)) as AnyConn);
        self.supplier = Some(Supplier::new(boxed));
        self.remote.is_lent = false;
        self
    }

    /// Lets the application lend the connections of a pool, such as an `r2d2::Pool`. The address of these options
    /// is only shown to people.
    ///
    /// The argument of `lend` is the time that it may take. A provider borrows up to [`pool_size`](Self::pool_size)
    /// connections. The pool needs these in addition to the application's own.
    ///
    /// A connection stays with the provider while its session holds a lock or waits for one. The provider keeps one
    /// idle connection until its end, and returns the others at once. A returned connection has its former
    /// `wait_timeout`, limit of statements and time-outs of the socket. After a hold of a second, an operator may
    /// have seen the session. Then the connection is closed instead, and the pool finds it broken.
    ///
    /// A session is checked each time it is lent, as by [`connect_with`](Self::connect_with). The pool may reset it
    /// when it is lent and when it is returned.
    ///
    /// ```no_run
    /// use lockkeeper_mysql::{Conn, MySqlOptions};
    ///
    /// // For example, `manager` is `r2d2_mysql::MySqlConnectionManager::new(opts)` of r2d2_mysql 28.
    /// fn options(
    ///     manager: impl r2d2::ManageConnection<Connection = Conn>,
    /// ) -> Result<MySqlOptions, r2d2::Error> {
    ///     // 8 for the application, and 10 for a provider with the default `pool_size`.
    ///     let pool = r2d2::Pool::builder().max_size(8 + 10).build(manager)?;
    ///     let options = MySqlOptions::tcp("db.internal", 3306);
    ///     Ok(options.borrow_with(move |limit| pool.get_timeout(limit)))
    /// }
    /// ```
    #[must_use]
    pub fn borrow_with<C, E>(
        mut self,
        lend: impl Fn(Duration) -> Result<C, E> + Send + Sync + 'static,
    ) -> Self
    where
        C: DerefMut<Target = Conn> + Send + 'static,
        E: StdError + Send + Sync + 'static,
    {
        let boxed = move |limit| lend(limit).map(|lent| Box::new(lent) as AnyConn);
        self.supplier = Some(Supplier::new(boxed));
        self.remote.is_lent = true;
        self
    }

    /// Names a PEM file of the server's public key, for connections without TLS. MySQL's servers have it in their data
    /// folder (`public_key.pem`). Not for TLS, which checks a certificate.
    ///
    /// With `caching_sha2_password`, the default of MySQL, the first login of a user asks for the password itself. A client
    /// encrypts it with the server's public key. Without TLS and without this file, such a login is refused: what answers
    /// may not be the server.
    #[must_use]
    pub fn server_key(mut self, file: impl Into<PathBuf>) -> Self {
        let base = OptsBuilder::from_opts(self.base);
        self.base = base.server_key_path(Some(file.into())).into();
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.remote.check()?;
        if let Some(file) = self.base.get_server_key_path() {
            self.check_server_key(file)?;
        }
        if self.supplier.is_some() {
            self.remote.check_supplied()?;
            if self.base.get_db_name().is_some() {
                return Err(Error::new(
                    ErrorKind::InvalidValue,
                    "the application's function chooses the database; leave `database` out",
                ));
            }
        }
        Ok(())
    }
}

impl MySqlOptions {
    /// Checks a file that the mysql crate reads at each login: it panics on what is no key.
    fn check_server_key(&self, file: &Path) -> Result<(), Error> {
        let invalid = |text| Error::new(ErrorKind::InvalidValue, text);
        if self.remote.tls {
            return Err(invalid(
                "`server_key_file` is for connections without TLS, which checks the server's certificate; leave one out"
                    .to_owned(),
            ));
        }
        let shown = file.display();
        let key = fs::read_to_string(file).map_err(|error| {
            invalid(format!("`server_key_file` {shown} cannot be read")).with_source(error)
        })?;
        let edges = ["-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"];
        // As many bytes as a login encrypts: a short key does not fit each password.
        let password = vec![1; self.remote.password.as_ref().map_or(0, String::len) + 1];
        let encrypts = || catch_unwind(|| encrypt(&password, key.as_bytes())).is_ok();
        match edges.iter().all(|edge| key.contains(edge)) && encrypts() {
            true => Ok(()),
            false => Err(invalid(format!(
                "`server_key_file` {shown} has no whole public key of RSA in PEM that fits the password; copy the server's public_key.pem"
            ))),
        }
    }
}

/// Returns the host as the mysql crate takes it: an IPv6 address in brackets.
pub(crate) fn bracketed(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

impl fmt::Debug for MySqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlOptions")
            .field("remote", &self.remote)
            .field("database", &self.base.get_db_name())
            .finish_non_exhaustive()
    }
}
