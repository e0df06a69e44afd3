//! The parts that a provider and its leases share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, Finding, HostInstant};
use lockkeeper_remote::{Failure, Pool};

use crate::connection::Connection;
use crate::connector::Connector;
use crate::dialect::Dialect;
use crate::opening;
use crate::options::MySqlOptions;
use crate::sessions::Sessions;

/// A slot of the pool. Its connection, if one is open, holds no name while it is in the pool.
pub(crate) type PooledConn = lockkeeper_remote::PooledConn<Connection>;

pub(crate) struct Store {
    pub(crate) connector: Connector,
    pub(crate) options: MySqlOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) dialect: Dialect,
    /// The number of callers that wait in the server.
    pub(crate) waiting: AtomicU32,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) pool: Pool<Connection>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("server", &self.connector.shared.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Connects, and inspects the server. Returns what may break locks, too.
    pub(crate) fn open(
        options: &MySqlOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<(Self, Vec<Finding>), Error> {
        options.check()?;
        let connector = Connector::new(options);
        let limit = options.remote.connect_timeout;
        let mut connection = connector.connect(limit)?;
        let warnings = opening::inspect(&mut connection, limit)?;
        let dialect = connection.dialect;
        let pool = Pool::new(options.remote.pool_size);
        if let Some(mut slot) = pool.try_checkout() {
            slot.connection = Some(connection);
        }
        let store = Self {
            connector,
            options: options.clone(),
            namespace: namespace.to_owned(),
            sessions: Sessions::new(Arc::clone(&clock))?,
            clock,
            dialect,
            waiting: AtomicU32::new(0),
            pool,
        };
        Ok((store, warnings))
    }

    /// Returns a slot of the pool as soon as one is free.
    pub(crate) fn checkout(&self, left: Duration) -> Result<PooledConn, Failure> {
        let limit = left.min(self.options.remote.response_timeout);
        self.pool.checkout(limit).ok_or_else(|| {
            let hold = self.sessions.count();
            let wait = self.waiting.load(Ordering::Relaxed);
            Failure::NotSent(self.connector.shared.server.exhausted(
                self.options.remote.pool_size,
                &format!(": {hold} hold locks and {wait} wait for one"),
                " (and the server's `max_connections`), or wait for fewer names at once",
            ))
        })
    }

    /// Runs `work` on the connection of a slot: see [`lockkeeper_remote::PooledConn::run`].
    pub(crate) fn run<T>(
        &self,
        slot: &mut PooledConn,
        until: HostInstant,
        mut work: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let longest = self.options.remote.response_timeout;
        let connect = |limit| self.connector.connect(limit);
        slot.run(&*self.clock, until, connect, |connection, limit| {
            connection.limit = limit.min(longest);
            work(connection)
        })
    }

    /// Returns whether new names share the existing sessions. Half of the pool is for waits.
    pub(crate) fn shares(&self) -> bool {
        let most = usize::try_from(self.options.remote.pool_size / 2).unwrap_or(usize::MAX);
        self.sessions.count() >= most.max(1)
    }
}
