//! The options of a MySQL or MariaDB server.

use std::fmt;
use std::path::PathBuf;

use lockkeeper_core::Error;
use lockkeeper_remote::{Endpoint, RemoteOptions, check_certificates, remote_setters};
use mysql::{Opts, OptsBuilder};

/// Where a server is, and how to talk to it. `Debug` shows no password.
#[derive(Clone)]
pub struct MySqlOptions {
    pub(crate) remote: RemoteOptions,
    /// All that `remote` does not say.
    base: Opts,
}

impl MySqlOptions {
    /// The port of a server by default.
    pub const DEFAULT_PORT: u16 = 3306;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        let base = Opts::default();
        Self { remote, base }
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
        Self { remote, base }
    }

    /// Returns the connection options, for connections of the application's own.
    pub fn opts(&self) -> Opts {
        let remote = &self.remote;
        let opts = OptsBuilder::from_opts(self.base.clone())
            .user(remote.user.clone())
            .pass(remote.password.clone())
            .ssl_opts(remote.tls.then(|| {
                let ssl = self.base.get_ssl_opts().cloned().unwrap_or_default();
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

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.remote.check()?;
        // The mysql crate takes a file without a certificate in silence.
        let ca_file = self.remote.ca_file.as_deref();
        ca_file.map_or(Ok(()), check_certificates)
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
