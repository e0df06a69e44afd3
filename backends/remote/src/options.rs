//! The address of a server, and the options to connect to it.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, Key, KeyValue, OpenContext, StoreUrl};

use crate::keys::{
    CA_FILE, CERT_FILE, CONNECT_TIMEOUT, KEY_FILE, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT,
    RESTART_GRACE, USER,
};
use crate::tls::check_files;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host and a port.
    Tcp {
        /// The host's name or address; an IPv6 address is without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Endpoint {
    /// Makes the address of a host and port. An IPv6 address may be in brackets.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Self::Tcp { host, port }
    }

    /// Returns the host and port of a URL, or `None` if the URL names no host.
    pub fn of_url(url: &StoreUrl, default_port: u16) -> Option<Self> {
        Self::all_of_url(url, default_port).into_iter().next()
    }

    /// Returns all hosts and ports of a URL, in its order.
    pub fn all_of_url(url: &StoreUrl, default_port: u16) -> Vec<Self> {
        let hosts = url.hosts();
        let endpoints = hosts.map(|(host, port)| Self::tcp(host, port.unwrap_or(default_port)));
        endpoints.collect()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// The options that every store behind a network takes. `Debug` shows no password.
#[derive(Clone)]
pub struct RemoteOptions {
    /// The address of the server.
    pub endpoint: Endpoint,
    /// The addresses of further members of the server's cluster, in the order in which they are tried.
    pub further: Vec<Endpoint>,
    /// The user to log in as.
    pub user: Option<String>,
    /// The password to log in with.
    pub password: Option<String>,
    /// Whether connections are encrypted.
    pub tls: bool,
    /// A PEM file of certificates to trust.
    pub ca_file: Option<PathBuf>,
    /// PEM files of this client's certificate, and of its private key.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// The largest number of connections, from 1 to 1000. Default: 10.
    pub pool_size: u32,
    /// The longest time to open a connection, from 1 ms to a day. Default: 2 s.
    pub connect_timeout: Duration,
    /// The longest time to wait for one reply, from 1 ms to a day. Default: 1 s.
    pub response_timeout: Duration,
    /// How long a server that was just started grants nothing, from 0 to a century. Default: 0, which
    /// is off. See [`RestartGrace`](crate::RestartGrace).
    pub restart_grace: Duration,
    /// Whether the application lends the connections: see [`Pool::of`](crate::Pool::of).
    pub is_lent: bool,
}

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteOptions")
            .field("endpoint", &self.endpoint)
            .field("further", &self.further)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}

impl RemoteOptions {
    /// Makes the default options for a server.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            further: Vec::new(),
            user: None,
            password: None,
            tls: false,
            ca_file: None,
            client_certificate: None,
            pool_size: 10,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(1),
            restart_grace: Duration::ZERO,
            is_lent: false,
        }
    }

    /// Reads a URL that may name several members of a cluster, and the keys as [`read`](Self::read) does. The schemes and
    /// the default ports are those without and with TLS.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] for a URL without a host, and those of `read`.
    pub fn of_cluster(
        context: &OpenContext<'_>,
        [plain, encrypted]: [&str; 2],
        [port, tls_port]: [u16; 2],
    ) -> Result<Self, Error> {
        let url = context.url();
        let is_tls = url.scheme() == encrypted;
        let default_port = if is_tls { tls_port } else { port };
        let mut endpoints = Endpoint::all_of_url(url, default_port).into_iter();
        let Some(first) = endpoints.next() else {
            let text = format!("the URL names no host; write {plain}://127.0.0.1:{port}");
            return Err(Error::new(ErrorKind::InvalidUrl, text));
        };
        let options = Self {
            further: endpoints.collect(),
            ..Self::new(first)
        };
        options.read(context, is_tls, &format!("write {encrypted}:// instead"))
    }

    /// Returns the addresses of all members.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        [&self.endpoint].into_iter().chain(&self.further)
    }

    /// Returns the URL of the server with a database and keys, and without secrets: see
    /// [`StoreInfo::location`](lockkeeper_core::StoreInfo::location).
    pub fn location(&self, scheme: &str, db: Option<&str>, keys: &[(&str, &str)]) -> String {
        match &self.endpoint {
            Endpoint::Unix(path) => {
                let socket = path.to_string_lossy();
                let first = [("socket", &*socket)].into_iter();
                let keys = first.chain(keys.iter().copied());
                let keys: Vec<_> = keys.chain(db.map(|db| ("db", db))).collect();
                StoreUrl::location(&format!("{scheme}:"), "", &keys)
            }
            Endpoint::Tcp { .. } => {
                let path = db.map(|db| format!("/{db}")).unwrap_or_default();
                let hosts: Vec<_> = self.endpoints().map(ToString::to_string).collect();
                StoreUrl::location(&format!("{scheme}://{}", hosts.join(",")), &path, keys)
            }
        }
    }

    /// Returns the same options for another server, such as the next one that the URL names.
    #[must_use]
    pub fn at(&self, endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            ..self.clone()
        }
    }

    /// Reads the [keys](crate::keys), and the user and password of the URL. `how_to_tls` is the advice
    /// how this store's URL turns on TLS.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`] for a value that a key does
    /// not take, a key that is given twice, and `ca_file` without TLS.
    pub fn read(
        mut self,
        context: &OpenContext<'_>,
        tls: bool,
        how_to_tls: &str,
    ) -> Result<Self, Error> {
        let url = context.url();
        self.tls = tls;
        self.ca_file = context.value(&CA_FILE)?.map(PathBuf::from);
        if self.ca_file.is_some() && !tls {
            return Err(invalid(format!(
                "`ca_file` is for TLS; {how_to_tls}, or leave it out"
            )));
        }
        self.client_certificate = match (context.value(&CERT_FILE)?, context.value(&KEY_FILE)?) {
            (Some(_), Some(_)) if !tls => {
                return Err(invalid(format!(
                    "`cert_file` is for TLS; {how_to_tls}, or leave it out"
                )));
            }
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => {
                return Err(invalid(
                    "`cert_file` and `key_file` belong together; give both, or none",
                ));
            }
        };
        self.user = given_once(context, &USER, url.username())?;
        self.password = given_once(context, &PASSWORD, url.password())?;
        let or = |key, default| Ok::<_, Error>(context.value(key)?.unwrap_or(default));
        self.connect_timeout = or(&CONNECT_TIMEOUT, self.connect_timeout)?;
        self.response_timeout = or(&RESPONSE_TIMEOUT, self.response_timeout)?;
        self.restart_grace = or(&RESTART_GRACE, self.restart_grace)?;
        self.pool_size = context.value(&POOL_SIZE)?.unwrap_or(self.pool_size);
        Ok(self)
    }

    /// Checks all that can be checked without the server, and reads the files of certificates.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`], and [`ErrorKind::Unsupported`] for TLS in a build without it.
    pub fn check(&self) -> Result<(), Error> {
        POOL_SIZE.check(self.pool_size)?;
        CONNECT_TIMEOUT.check(self.connect_timeout)?;
        RESPONSE_TIMEOUT.check(self.response_timeout)?;
        RESTART_GRACE.check(self.restart_grace)?;
        if self.tls && matches!(self.endpoint, Endpoint::Unix(_)) {
            return Err(invalid("a Unix socket is not encrypted; leave TLS out"));
        }
        match (self.tls, &self.client_certificate) {
            (true, _) => check_files(self),
            (false, None) => Ok(()),
            (false, Some(_)) => Err(invalid(
                "a client certificate is for TLS; turn TLS on, or leave the certificate out",
            )),
        }
    }

    /// Checks that the options have nothing that the application's function for connections decides.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidValue`].
    pub fn check_supplied(&self) -> Result<(), Error> {
        match self.user.is_some() || self.password.is_some() || self.tls {
            true => Err(invalid(
                "the application's function connects and logs in, so a user, a password and TLS have no effect; leave them out",
            )),
            false => Ok(()),
        }
    }

    /// Returns the time that a single attempt may take, since it has no deadline.
    pub fn attempt_time(&self) -> Duration {
        self.response_timeout.max(self.connect_timeout)
    }
}

#[cfg(not(feature = "tls"))]
pub(crate) fn without_tls() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "this program was built without TLS; build it with lockkeeper's feature `tls`",
    )
}

pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidValue, text)
}

/// Returns a value that either a part of the URL or a key has.
///
/// # Errors
/// [`ErrorKind::InvalidValue`] if both have a value, or if the key does not take it.
pub fn given_once<T: KeyValue>(
    context: &OpenContext<'_>,
    key: &Key<T>,
    in_url: Option<&str>,
) -> Result<Option<T>, Error> {
    match (in_url, context.value(key)?) {
        (Some(_), Some(_)) => Err(invalid(format!(
            "`{}` is given twice, in the URL and as a key; say it once",
            key.spec.name
        ))),
        (Some(in_url), None) => key.parse(in_url).map(Some),
        (None, given) => Ok(given),
    }
}

/// Defines the setters that the options of every backend have, for a struct with a field `remote`:
/// [`RemoteOptions`]. The argument documents the backend's own meaning of TLS.
#[macro_export]
macro_rules! remote_setters {
    ($tls:literal) => {
        #[doc = $tls]
        #[must_use]
        pub fn tls(mut self, ca_file: Option<::std::path::PathBuf>) -> Self {
            self.remote.tls = true;
            self.remote.ca_file = ca_file;
            self
        }

        /// Sets the certificate of this client and its private key (PEM). The default is none. It needs
        /// [`tls`](Self::tls).
        #[must_use]
        pub fn client_certificate(
            mut self,
            certificate: impl Into<::std::path::PathBuf>,
            key: impl Into<::std::path::PathBuf>,
        ) -> Self {
            self.remote.client_certificate = Some((certificate.into(), key.into()));
            self
        }

        /// The user to log in as. Default: none.
        #[must_use]
        pub fn user(mut self, user: impl Into<String>) -> Self {
            self.remote.user = Some(user.into());
            self
        }

        /// The password to log in with. Default: none.
        #[must_use]
        pub fn password(mut self, password: impl Into<String>) -> Self {
            self.remote.password = Some(password.into());
            self
        }

        /// The largest number of connections, from 1 to 1000. Default: 10. The provider's page says which ones it opens
        /// beside them.
        #[must_use]
        pub fn pool_size(mut self, connections: u32) -> Self {
            self.remote.pool_size = connections;
            self
        }

        /// The longest time to open a connection, from 1 ms to a day. Default: 2 s. Finding the
        /// host's address takes as long as the system allows.
        #[must_use]
        pub fn connect_timeout(mut self, limit: ::std::time::Duration) -> Self {
            self.remote.connect_timeout = limit;
            self
        }

        /// The longest time to wait for one reply, from 1 ms to a day. Default: 1 s. It does not
        /// bound a wait for a lock.
        #[must_use]
        pub fn response_timeout(mut self, limit: ::std::time::Duration) -> Self {
            self.remote.response_timeout = limit;
            self
        }

        /// How long a server that was just started grants nothing, from 0 to a century. Default: 0,
        /// which is off.
        ///
        /// A server that lost its locks in a restart grants them again. A former holder that was stopped or cut off
        /// meanwhile does not know that yet. If the time is at least the largest ttl of all programs, every such
        /// holder's guard is lost before the next grant. Until the time is over, an acquisition with a wait
        /// continues as in an outage, and a single attempt is
        /// [`Unavailable`](::lockkeeper_core::ErrorKind::Unavailable). All programs need the setting. The server's
        /// own clock counts the time since its start, so setting that clock forward just after the start shortens
        /// the time.
        #[must_use]
        pub fn restart_grace(mut self, grace: ::std::time::Duration) -> Self {
            self.remote.restart_grace = grace;
            self
        }
    };
}
