//! The provider.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    Admin, Backend, Capabilities, Capability, Clock, Error, LockName, Mode, Proof, StoreInfo,
    SystemClock, TransactionLockSql, Usage,
};
use lockkeeper_sessions::{SessionLease, SessionName as _, SessionStore, Sessions, session_verbs};

use crate::connection::connector::Connector;
use crate::connection::{Connection, opening};
use crate::names::LockKey;
use crate::options::{BACKEND, PostgresOptions};
use crate::statements;
use crate::statements::epoch::LastEpoch;

/// A grant of a [`PostgresProvider`].
type Lease = SessionLease<Connection>;

/// Locks on one PostgreSQL server, in one database, for all programs that reach it. Clones share their connections.
///
/// At most [`PostgresOptions::pool_size`] connections serve it: see [Connections](lockkeeper_sessions#connections).
///
/// Exclusive and shared locks wait in the server, first come, first served. Permits of semaphores are not there.
///
/// # Limits
/// Those of all [stores with sessions](lockkeeper_sessions#limits), and:
/// - A name is a key of 63 bits. Of a million names, two have the same key with a probability of 1 in 18 million. Then one
///   waits for the other.
/// - Each lock takes a place in the server's table of locks, whose size is `max_locks_per_transaction` times
///   `max_connections` (6,400 by default).
/// - One server is the truth: a replica that takes over knows none of its primary's locks.
/// - Tokens are the server's clock. A clock that is set back takes them back, unless a provider noticed it.
/// - A ttl of more than 24 days needs a renewal in each 24 days.
#[derive(Clone, Debug)]
pub struct PostgresProvider(Arc<Store>);

impl PostgresProvider {
    /// Connects, logs in, looks at what the server is, and does once what a lock needs, all within
    /// a few times the connect timeout. Locks of two namespaces never meet.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`](lockkeeper_core::ErrorKind::Unavailable) if the server is out of reach, or has no
    ///   connection left.
    /// - [`ErrorKind::PermissionDenied`](lockkeeper_core::ErrorKind::PermissionDenied) for a wrong password, a
    ///   missing permission, or a certificate that is not trusted.
    /// - [`ErrorKind::Incompatible`](lockkeeper_core::ErrorKind::Incompatible) for what is no PostgreSQL server,
    ///   offers no TLS, or is too old. Also for a replica, and behind a pooler that shares out sessions.
    /// - [`ErrorKind::InvalidValue`](lockkeeper_core::ErrorKind::InvalidValue) for options out of bounds, or a
    ///   database that does not exist.
    pub fn open(options: &PostgresOptions, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(options, namespace, Arc::new(SystemClock))
    }

    /// Opens a provider on the clock that its keepers count on.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(
        options: &PostgresOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let opened = Store::open(options, namespace, clock);
        let store = opened.map_err(|error| error.with_backend(BACKEND))?;
        Ok(Self(Arc::new(store)))
    }
}

/// The parts of a provider.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) locks: SessionStore<Connection>,
    pub(crate) last_epoch: Arc<LastEpoch>,
    pub(crate) database: String,
    /// What tells the database from all others, if the user may know it.
    pub(crate) identity: Option<String>,
}

impl Store {
    /// Connects, and inspects the server.
    pub(crate) fn open(
        options: &PostgresOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        let sessions = Sessions::new(clock)?;
        let connector = Connector::new(options, namespace, &sessions)?;
        let mut first = connector.connect(options.remote.connect_timeout)?;
        opening::inspect(&mut first)?;
        let identity = opening::identity(&mut first)?;
        let shared = Arc::clone(&connector.shared);
        let connect = move |limit| connector.connect(limit);
        Ok(Self {
            locks: SessionStore::new(&options.remote, namespace, sessions, first, connect),
            last_epoch: Arc::clone(&shared.last_epoch),
            database: options.name_of_database().to_owned(),
            identity,
        })
    }
}

impl StoreInfo for PostgresProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        self.0.locks.location("postgres", Some(&self.0.database))
    }

    fn capabilities(&self) -> Capabilities {
        self.0.locks.capabilities().with(Capability::Shared)
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.0.locks.usage())
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.0)
    }

    fn transaction_lock(&self, name: &LockName, wait: Duration) -> Option<TransactionLockSql> {
        let namespace = &self.0.locks.namespace;
        let key = LockKey::requested(namespace, name.as_str(), Mode::Exclusive);
        let identity = self.0.identity.as_ref()?;
        let last = self.0.last_epoch.get();
        Some(statements::transaction_lock(&key, wait, identity, last))
    }

    fn note_transaction_epoch(&self, epoch: u64) {
        self.0.last_epoch.note(epoch);
    }
}

impl Backend for PostgresProvider {
    type Lease = Lease;

    session_verbs!();

    fn proof(&self, lease: &Lease) -> Option<Proof> {
        Some(statements::proof(lease.session(), lease.name()))
    }
}
