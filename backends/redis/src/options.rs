//! The options of a Redis or Valkey server.

use std::fmt;
use std::path::PathBuf;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Endpoint, RemoteOptions, remote_setters};

use crate::RedisDriver;

/// Where a server is, and how to talk to it. `Debug` shows no password.
#[derive(Clone)]
pub struct RedisOptions {
    pub(crate) remote: RemoteOptions,
    pub(crate) database: u32,
    pub(crate) replicas: u32,
}

impl RedisOptions {
    /// The port of a Redis server by default.
    pub const DEFAULT_PORT: u16 = 6379;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        Self {
            remote,
            database: 0,
            replicas: 0,
        }
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
        "Encrypts, and checks the server's certificate by the certificates in `ca_file` (PEM), or by the system's where it is `None`. Not for Unix sockets."
    );

    /// The database's number, from 0 to 2147483647. Default: 0. Locks of two databases never meet.
    #[must_use]
    pub fn database(mut self, database: u32) -> Self {
        self.database = database;
        self
    }

    /// The number of replicas that must acknowledge a grant, and each renewal, from 0 to 1000.
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
        self.remote.check()?;
        RedisDriver::DB.check(self.database)?;
        RedisDriver::REPLICAS.check(self.replicas)?;
        if self.remote.user.is_some() && self.remote.password.is_none() {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                "a user without a password cannot log in; add `password`, or leave the user out",
            ));
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
