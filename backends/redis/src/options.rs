//! Where the server is, and how to talk to it.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};

pub(crate) const POOL_SIZES: RangeInclusive<u32> = 1..=1_000;
/// The server counts in signed numbers of 32 bits.
pub(crate) const DATABASES: RangeInclusive<u32> = 0..=2_147_483_647;
pub(crate) const REPLICAS: RangeInclusive<u32> = 0..=1_000;
/// The kernel keeps timeouts as signed numbers; a day is for ever here.
const TIMEOUTS: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(86_400);

#[derive(Clone, Debug)]
pub(crate) enum Place {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// Where a server is, and how to talk to it. `Debug` shows no password.
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) place: Place,
    pub(crate) tls: bool,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
    pub(crate) pool_size: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) replicas: u32,
}

impl RedisOptions {
    /// The port of a Redis server that was not told another one.
    pub const DEFAULT_PORT: u16 = 6379;

    fn at(place: Place) -> Self {
        Self {
            place,
            tls: false,
            ca_file: None,
            user: None,
            password: None,
            database: 0,
            pool_size: 10,
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(1),
            replicas: 0,
        }
    }

    /// A server at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::at(Place::Tcp {
            host: host.into(),
            port,
        })
    }

    /// A server at a Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::at(Place::Unix(path.into()))
    }

    /// Encrypts, and checks the server's certificate by the certificates in `ca_file` (PEM), or by
    /// the system's where it is `None`. Not for Unix sockets.
    #[must_use]
    pub fn tls(mut self, ca_file: Option<PathBuf>) -> Self {
        self.tls = true;
        self.ca_file = ca_file;
        self
    }

    /// The user to log in as. Default: none, which is the server's `default`.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password to log in with. Default: none.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// The database's number, from 0 to 2147483647. Default: 0. Locks of two databases never meet.
    #[must_use]
    pub fn database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// The most connections, from 1 to 1000. Default: 10. One more is opened when somebody waits, to be
    /// woken by.
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

    /// The longest to wait for one answer, from 1 ms to a day. Default: 1 s.
    #[must_use]
    pub fn response_timeout(mut self, limit: Duration) -> Self {
        self.response_timeout = limit;
        self
    }

    /// How many replicas must have acknowledged a grant, and each renewal, from 0 to 1000.
    /// Default: 0. Costs a round trip.
    ///
    /// A grant that they do not acknowledge within the response timeout is given back, and the
    /// answer is [`ErrorKind::Unavailable`]. Where the server becomes a replica meanwhile, the grant
    /// is asked for again while there is time, else the answer is [`ErrorKind::Unknown`]. A renewal
    /// that they do not acknowledge counts as unknown: it moves no deadline, so a guard is lost by
    /// its ttl when the replicas stay away. Releases do not wait.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let bad = |text: &str| Err(Error::new(ErrorKind::InvalidValue, text));
        within("pool_size", "a number", &self.pool_size, &POOL_SIZES)?;
        within("db", "a number", &self.database, &DATABASES)?;
        within("replicas", "a number", &self.replicas, &REPLICAS)?;
        for (key, limit) in [
            ("connect_timeout", &self.connect_timeout),
            ("response_timeout", &self.response_timeout),
        ] {
            within(key, "a duration", limit, &TIMEOUTS)?;
        }
        if self.user.is_some() && self.password.is_none() {
            return bad(
                "a user without a password cannot log in; add `password`, or leave the user out",
            );
        }
        if self.tls && matches!(self.place, Place::Unix(_)) {
            return bad("a Unix socket is not encrypted; leave TLS out");
        }
        Ok(())
    }
}

fn within<T: PartialOrd + fmt::Debug>(
    key: &str,
    kind: &str,
    value: &T,
    range: &RangeInclusive<T>,
) -> Result<(), Error> {
    if range.contains(value) {
        return Ok(());
    }
    let (least, most) = (range.start(), range.end());
    Err(Error::new(
        ErrorKind::InvalidValue,
        format!("`{key}` takes {kind} from {least:?} to {most:?}, and not {value:?}"),
    ))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("place", &self.place)
            .field("tls", &self.tls)
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}
