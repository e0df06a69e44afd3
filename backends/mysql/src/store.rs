//! The parts that a provider and its leases share.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, Finding, HostInstant};
use lockkeeper_remote::{Failure, Found, Pool, RemoteOptions};

use crate::connection::Connection;
use crate::connector::Connector;
use crate::dialect::Dialect;
use crate::opening;
use crate::options::MySqlOptions;
use crate::sessions::{Session, Sessions};

/// A slot of the pool. Its connection, if one is open, holds no name while it is in the pool.
pub(crate) type PooledConn = lockkeeper_remote::PooledConn<Connection>;

pub(crate) struct Store {
    pub(crate) connector: Connector,
    pub(crate) remote: RemoteOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) dialect: Dialect,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) pool: Pool<Connection>,
    /// The conditions found on opening that may break locks, for people.
    pub(crate) warnings: Vec<String>,
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
    /// Connects, and inspects the server.
    pub(crate) fn open(
        options: &MySqlOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        let sessions = Sessions::new(Arc::clone(&clock))?;
        let connector = Connector::new(options, &clock, &sessions);
        let limit = options.remote.connect_timeout;
        let mut connection = connector.connect(limit)?;
        let found = opening::inspect(&mut connection, limit)?;
        let text = |found: &Finding| format!("{}: {}; {}", found.what, found.meaning, found.advice);
        let dialect = connection.dialect;
        let pool = Pool::new(options.remote.pool_size);
        if let Some(mut slot) = pool.try_checkout() {
            slot.connection = Some(connection);
        }
        Ok(Self {
            connector,
            remote: options.remote.clone(),
            namespace: namespace.to_owned(),
            sessions,
            clock,
            dialect,
            pool,
            warnings: found.iter().map(text).collect(),
        })
    }

    /// Returns a slot of the pool as soon as one is free.
    pub(crate) fn checkout(&self, left: Duration) -> Result<PooledConn, Failure> {
        let slot = self.pool.checkout(left.min(self.remote.response_timeout));
        slot.ok_or_else(|| self.exhausted())
    }

    /// Returns a slot of the pool as soon as one is free, or a session that takes a name: what `shared`
    /// returns.
    pub(crate) fn checkout_or_share(
        &self,
        left: Duration,
        shared: impl FnMut() -> Option<Arc<Session>>,
    ) -> Result<Found<Connection, Arc<Session>>, Failure> {
        let limit = left.min(self.remote.response_timeout);
        let found = self.pool.checkout_or(limit, shared);
        found.ok_or_else(|| self.exhausted())
    }

    pub(crate) fn exhausted(&self) -> Failure {
        let hold = self.sessions.count();
        let wait = self.pool.waiting();
        Failure::NotSent(self.connector.shared.server.exhausted(
            self.remote.pool_size,
            &format!(": {hold} hold locks and {wait} wait for one"),
            " (and the server's `max_connections`), or wait for fewer names at once",
        ))
    }

    /// Runs `work` on the connection of a slot: see [`lockkeeper_remote::PooledConn::run`].
    pub(crate) fn run<T>(
        &self,
        slot: &mut PooledConn,
        until: HostInstant,
        mut work: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let longest = self.remote.response_timeout;
        let connect = |limit| self.connector.connect(limit);
        slot.run(&*self.clock, until, connect, |connection, limit| {
            connection.limit = limit.min(longest);
            work(connection)
        })
    }

    /// Returns whether new names share the existing sessions. Half of the pool is for waits.
    pub(crate) fn shares(&self) -> bool {
        let most = usize::try_from(self.remote.pool_size / 2).unwrap_or(usize::MAX);
        self.sessions.count() >= most.max(1)
    }
}
