//! Where the server is, and how to talk to it.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};
use mysql::{Opts, OptsBuilder, SslOpts};

/// How many connections a pool may have.
const POOL_SIZES: RangeInclusive<u32> = 1..=1_000;
/// [`POOL_SIZES`] for people.
pub(crate) const TAKES_POOL_SIZE: &str = "a number from 1 to 1000";
/// How long a server may be waited for. The kernel keeps time-outs as signed numbers, so there is an
/// end.
const LIMITS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);

/// Where a server is, and how to talk to it. `Debug` shows no password.
#[derive(Clone)]
pub struct MySqlOptions {
    pub(crate) opts: Opts,
    pub(crate) pool_size: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

impl MySqlOptions {
    /// The port of a server that was not told another one.
    pub const DEFAULT_PORT: u16 = 3306;

    /// A server that the application has connection options for. A pool of its own is made from
    /// them; of what they say, the place, the user, the TLS, the database and what is run on
    /// connecting are taken over.
    pub fn from_opts(opts: impl Into<Opts>) -> Self {
        Self {
            opts: opts.into(),
            pool_size: 10,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(1),
        }
    }

    /// The connection options, for connections of the application's own.
    pub fn opts(&self) -> &Opts {
        &self.opts
    }

    /// A server at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        let host = match host.parse::<std::net::Ipv6Addr>() {
            Ok(address) => format!("[{address}]"),
            Err(_) => host,
        };
        let place = OptsBuilder::new().ip_or_hostname(Some(host)).tcp_port(port);
        Self::from_opts(place)
    }

    /// A server at a Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        let path = path.into().to_string_lossy().into_owned();
        Self::from_opts(OptsBuilder::new().socket(Some(path)))
    }

    fn build(mut self, change: impl FnOnce(OptsBuilder) -> OptsBuilder) -> Self {
        self.opts = change(OptsBuilder::from_opts(self.opts)).into();
        self
    }

    /// Encrypts, and checks the server's certificate by the authorities that browsers trust
    /// (Mozilla's list, built in) and by the certificates in `ca_file` (PEM). Not for Unix sockets.
    #[must_use]
    pub fn tls(self, ca_file: Option<PathBuf>) -> Self {
        let trust = SslOpts::default().with_root_cert_path(ca_file);
        self.build(|opts| opts.ssl_opts(trust))
    }

    /// The user to log in as. Default: none, which is the server's anonymous one.
    #[must_use]
    pub fn user(self, user: impl Into<String>) -> Self {
        let user = user.into();
        self.build(|opts| opts.user(Some(user)))
    }

    /// The password to log in with. Default: none. Without TLS it travels encrypted by a key that
    /// the server gives, whoever that is.
    #[must_use]
    pub fn password(self, password: impl Into<String>) -> Self {
        let password = password.into();
        self.build(|opts| opts.pass(Some(password)))
    }

    /// The database to be in. Default: none. It makes no difference to locks: those are shared by
    /// all databases of a server.
    #[must_use]
    pub fn database(self, database: impl Into<String>) -> Self {
        let database = database.into();
        self.build(|opts| opts.db_name(Some(database)))
    }

    /// The most connections, from 1 to 1000. Default: 10. Each wait takes one, and keeps it with the
    /// lock; locks that were free share half of them.
    #[must_use]
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections;
        self
    }

    /// The longest that opening a connection may take, from 1 ms to a day. Default: 2 s. Looking up the
    /// host's address takes as long as the system allows.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = limit;
        self
    }

    /// The longest to wait for one answer, from 1 ms to a day. Default: 1 s. It does not bound a wait for a
    /// lock.
    #[must_use]
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.response_timeout = limit;
        self
    }

    /// Where the server is, for people.
    pub(crate) fn place(&self) -> String {
        match self.opts.get_socket() {
            Some(path) => path.to_owned(),
            None => format!(
                "{}:{}",
                self.opts.get_ip_or_hostname(),
                self.opts.get_tcp_port()
            ),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |text: String| Err(Error::new(ErrorKind::InvalidValue, text));
        if !POOL_SIZES.contains(&self.pool_size) {
            return bad(format!(
                "`pool_size` takes {TAKES_POOL_SIZE}, and not {}",
                self.pool_size
            ));
        }
        for (key, limit) in [
            ("connect_timeout", self.connect_timeout),
            ("response_timeout", self.response_timeout),
        ] {
            if !LIMITS.contains(&limit) {
                return bad(format!(
                    "`{key}` takes a duration from 1ms to 1day, and not {limit:?}"
                ));
            }
        }
        let trust = self.opts.get_ssl_opts();
        if trust.is_some() && self.opts.get_socket().is_some() {
            return bad("a Unix socket is not encrypted; leave TLS out".to_owned());
        }
        let Some(ca_file) = trust.and_then(SslOpts::root_cert_path) else {
            return Ok(());
        };
        match std::fs::read(ca_file) {
            Ok(pem) if pem.windows(11).any(|at| at == b"-----BEGIN ") => Ok(()),
            Ok(_) => bad("`ca_file` has no certificate in it; it takes a PEM file".to_owned()),
            Err(error) => bad(format!(
                "`ca_file` {} cannot be read: {error}",
                ca_file.display()
            )),
        }
    }
}

impl fmt::Debug for MySqlOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlOptions")
            .field("place", &self.place())
            .field("tls", &self.opts.get_ssl_opts().is_some())
            .field("user", &self.opts.get_user())
            .field("password", &self.opts.get_pass().map(|_| "***"))
            .field("database", &self.opts.get_db_name())
            .field("pool_size", &self.pool_size)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_and_passwords_are_not() {
        let options = MySqlOptions::tcp("::1", 1).user("me").password("s3cret");
        assert_eq!(options.place(), "[::1]:1");
        let shown = format!("{options:?}");
        assert!(
            shown.contains("***") && !shown.contains("s3cret"),
            "{shown}"
        );
        assert_eq!(MySqlOptions::unix("/run/x.sock").place(), "/run/x.sock");
    }

    #[test]
    fn out_of_bounds_is_told() {
        let good = || MySqlOptions::tcp("localhost", 3306);
        assert!(good().check().is_ok());
        for bad in [
            good().pool_size(0),
            good().pool_size(1_001),
            good().connect_timeout(Duration::ZERO),
            good().response_timeout(Duration::MAX),
            good().tls(Some("/nowhere.pem".into())),
            MySqlOptions::unix("/x").tls(None),
        ] {
            let error = bad.check().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        }
    }
}
