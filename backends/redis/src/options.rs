//! The options of a Redis or Valkey server.

use std::error::Error as StdError;
use std::fmt;
use std::ops::DerefMut;
use std::path::PathBuf;
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, Key, Takes};
use lockkeeper_remote::{Endpoint, RemoteOptions, Supplier, remote_setters};

/// The backend's name in errors and capabilities.
pub(crate) const BACKEND: &str = "redis";

/// A connection of the redis crate: in a box, or lent by a pool.
pub(crate) type AnyConnection = Box<dyn DerefMut<Target = redis::Connection> + Send>;

pub(crate) const DB: Key<u32> = Key::new(
    "db",
    Takes::Number(0, i32::MAX as u32),
    "0",
    "the database's number, unless the URL names it",
);
pub(crate) const REPLICAS: Key<u32> = Key::new(
    "replicas",
    Takes::Number(0, 1_000),
    "0",
    "how many replicas must acknowledge a grant and each renewal",
);

/// The options of a server, of sentinels that name it, or of a cluster. `Debug` shows no password.
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) remote: RemoteOptions,
    pub(crate) database: u32,
    pub(crate) replicas: u32,
    /// The addresses of the sentinels that name the primary. Empty for a server at a known address.
    pub(crate) sentinels: Vec<Endpoint>,
    /// The name by which the sentinels watch the primary.
    pub(crate) primary: String,
    /// Some of the nodes of a cluster. Empty for a server.
    pub(crate) nodes: Vec<Endpoint>,
    pub(crate) sentinel_user: Option<String>,
    pub(crate) sentinel_password: Option<String>,
    pub(crate) supplier: Option<Supplier<AnyConnection>>,
}

impl RedisOptions {
    /// The port of a Redis server by default.
    pub const DEFAULT_PORT: u16 = 6379;
    /// The port of a sentinel by default.
    pub const DEFAULT_SENTINEL_PORT: u16 = 26379;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        Self {
            remote,
            database: 0,
            replicas: 0,
            sentinels: Vec::new(),
            primary: String::new(),
            nodes: Vec::new(),
            sentinel_user: None,
            sentinel_password: None,
            supplier: None,
        }
    }

    /// Makes the options of a server at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::new(RemoteOptions::new(Endpoint::tcp(host, port)))
    }

    /// Makes the options of a server at a Unix socket.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::new(RemoteOptions::new(Endpoint::Unix(path.into())))
    }

    /// Makes the options of a primary that sentinels watch by the name `primary`, with one of these sentinels. The
    /// user, the password and the database of these options are those of the servers. TLS is for servers and
    /// sentinels.
    ///
    /// New connections ask a sentinel for the primary. From 50 ms after the first grant, a thread listens to a
    /// sentinel, and also asks it every 5 s. When another server has become the primary, all leases are
    /// verified there.
    pub fn sentinel(host: impl Into<String>, port: u16, primary: impl Into<String>) -> Self {
        let sentinel = Endpoint::tcp(host, port);
        Self {
            primary: primary.into(),
            sentinels: vec![sentinel.clone()],
            ..Self::new(RemoteOptions::new(sentinel))
        }
    }

    /// Adds another [`sentinel`](Self::sentinel). They are asked in this order until one answers.
    #[must_use]
    pub fn and_sentinel(mut self, host: impl Into<String>, port: u16) -> Self {
        self.sentinels.push(Endpoint::tcp(host, port));
        self
    }

    /// Makes the options of a cluster, with one of its nodes. All nodes have the same user, password and TLS. Each
    /// primary has a pool of connections.
    pub fn cluster(host: impl Into<String>, port: u16) -> Self {
        let node = Endpoint::tcp(host, port);
        Self {
            nodes: vec![node.clone()],
            ..Self::new(RemoteOptions::new(node))
        }
    }

    /// Adds another [node](Self::cluster) of the cluster. Nodes that are not listed are found through the others.
    #[must_use]
    pub fn and_node(mut self, host: impl Into<String>, port: u16) -> Self {
        self.nodes.push(Endpoint::tcp(host, port));
        self
    }

    /// Returns the same options for the server at another address.
    pub(crate) fn at(&self, endpoint: Endpoint) -> Self {
        Self {
            remote: self.remote.at(endpoint),
            ..self.clone()
        }
    }

    remote_setters!(
        "Encrypts, and checks the server's certificate by the certificates in `ca_file` (PEM), or by the system's where it is `None`. Not for Unix sockets."
    );

    /// The database's number, from 0 to 2147483647. Default: 0. Locks of two databases never meet.
    #[must_use]
    pub fn database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// The user to log in as at the sentinels. Default: none.
    #[must_use]
    pub fn sentinel_user(mut self, user: impl Into<String>) -> Self {
        self.sentinel_user = Some(user.into());
        self
    }

    /// The password to log in with at the sentinels. Default: none.
    #[must_use]
    pub fn sentinel_password(mut self, password: impl Into<String>) -> Self {
        self.sentinel_password = Some(password.into());
        self
    }

    /// The number of replicas that must acknowledge a grant, and each renewal, from 0 to 1000.
    /// Default: 0. Costs a round trip.
    ///
    /// A grant without acknowledgement within the response timeout is released, and the answer is
    /// [`ErrorKind::Unavailable`]. If the server becomes a replica meanwhile, the attempt is
    /// repeated while there is time; otherwise the answer is [`ErrorKind::Unknown`]. A renewal
    /// without acknowledgement counts as unknown and moves no deadline. So if the replicas stay
    /// away, a guard is lost by its ttl. Releases do not wait.
    #[must_use]
    pub fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = replicas;
        self
    }

    /// Lets the application make the connections: through a tunnel, with passwords that change, or with TLS of its
    /// choice. The address of these options is only shown to people.
    ///
    /// The argument of `connect` is the time that it may take. A connection that comes later is closed. A
    /// provider keeps up to [`pool_size`](Self::pool_size) connections open, and one more that listens, which
    /// speaks RESP3.
    ///
    /// A connection is checked before it is used. A connection in another [`database`](Self::database) than that of
    /// these options, or to another server than the first one, is the error [`ErrorKind::Incompatible`]. The user
    /// needs the permission `+info`. While `connect` fails, the store is unavailable.
    ///
    /// The redis crate does not show its socket, so a connection that was idle gets a PING before a request. That
    /// costs a round trip, which connections by an address do not need.
    ///
    /// The crate has a time-out for each read, but none for a whole reply. A server that sends a reply in parts, or
    /// without an end, can block such a connection and fill the program's memory. Connections by an address have
    /// one deadline for the whole reply, which may have at most 16 MiB.
    ///
    /// A cancel does not end a request on such a connection. If the server does not reply, a cancelled acquisition
    /// returns after the response timeout.
    ///
    /// ```no_run
    /// use lockkeeper_redis::{RedisOptions, RedisProvider};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1:16379/").unwrap();
    /// let options = RedisOptions::tcp("redis.internal", 6379)
    ///     .connect_with(move |limit| client.get_connection_with_timeout(limit));
    /// let provider = RedisProvider::open(&options, "shop")?;
    /// # Ok::<(), lockkeeper_core::Error>(())
    /// ```
    #[must_use]
    pub fn connect_with<E: StdError + Send + Sync + 'static>(
        mut self,
        connect: impl Fn(Duration) -> Result<redis::Connection, E> + Send + Sync + 'static,
    ) -> Self {
        let boxed = move |limit| {
            let made = connect(limit);
            made.map(|made| Box::new(Box::new(made)) as AnyConnection)
        };
        self.supplier = Some(Supplier::new(boxed));
        self.remote.is_lent = false;
        self
    }

    /// Lets the application lend the connections of a pool, such as an `r2d2::Pool<redis::Client>`. The address of
    /// these options is only shown to people.
    ///
    /// The argument of `lend` is the time that it may take. A provider borrows up to [`pool_size`](Self::pool_size)
    /// connections, and one more that listens. The pool needs these in addition to the application's own.
    ///
    /// A connection stays with the provider during a request. The provider keeps one idle connection until its end,
    /// and returns the others at once. A returned connection has no time-outs, like a new connection of the redis
    /// crate. A pool that sets time-outs has to set them when it lends. A connection with a missing reply is closed
    /// instead.
    ///
    /// A connection is checked each time it is lent, as by [`connect_with`](Self::connect_with).
    ///
    /// ```ignore
    /// let pool = r2d2::Pool::new(redis::Client::open("redis://127.0.0.1:16379/")?)?;
    /// let options = RedisOptions::tcp("redis.internal", 6379)
    ///     .borrow_with(move |limit| pool.get_timeout(limit));
    /// ```
    #[must_use]
    pub fn borrow_with<C, E>(
        mut self,
        lend: impl Fn(Duration) -> Result<C, E> + Send + Sync + 'static,
    ) -> Self
    where
        C: DerefMut<Target = redis::Connection> + Send + 'static,
        E: StdError + Send + Sync + 'static,
    {
        let boxed = move |limit| lend(limit).map(|lent| Box::new(lent) as AnyConnection);
        self.supplier = Some(Supplier::new(boxed));
        self.remote.is_lent = true;
        self
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.remote.check()?;
        DB.check(self.database)?;
        REPLICAS.check(self.replicas)?;
        let invalid = |text| Err(Error::new(ErrorKind::InvalidValue, text));
        if self.supplier.is_some() {
            self.remote.check_supplied()?;
            if !self.sentinels.is_empty() {
                return invalid(
                    "the application's function connects, so no sentinel is asked; leave the sentinels out",
                );
            }
            if !self.nodes.is_empty() {
                return invalid(
                    "the application's function connects to one server, and a cluster has several; leave the function out, or the cluster",
                );
            }
        }
        if self.remote.user.is_some() && self.remote.password.is_none() {
            return invalid(
                "a user without a password cannot log in; add `password`, or leave the user out",
            );
        }
        if self.sentinel_user.is_some() && self.sentinel_password.is_none() {
            return invalid(
                "`sentinel_user` cannot log in without a password; add `sentinel_password`, or leave it out",
            );
        }
        if !self.nodes.is_empty() && self.database != 0 {
            return invalid("a cluster has no database but 0; leave `db` out, and use `namespace`");
        }
        if self.sentinel_password.is_some() && self.sentinels.is_empty() {
            return invalid(
                "`sentinel_password` is for sentinels; write redis+sentinel:// with their hosts, or leave it out",
            );
        }
        Ok(())
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("remote", &self.remote)
            .field("database", &self.database)
            .finish_non_exhaustive()
    }
}
