//! The provider.

use std::sync::Arc;

use lockkeeper_core::{
    Admin, Backend, Capabilities, Clock, Error, Finding, Proof, StoreInfo, SystemClock, Usage,
};
use lockkeeper_sessions::{SessionLease, SessionStore, Sessions, session_verbs};
use parking_lot::Mutex;

use crate::connection::connector::Connector;
use crate::connection::{Connection, opening};
use crate::options::{BACKEND, MySqlOptions};
use crate::statements;
use crate::statements::dialect::Dialect;
use crate::statements::run::Run;

/// A grant of a [`MySqlProvider`].
type Lease = SessionLease<Connection>;

/// Locks on one MySQL or MariaDB server, for all programs that reach it. Clones share their
/// connections.
///
/// At most [`MySqlOptions::pool_size`] connections serve it: see [Connections](lockkeeper_sessions#connections). In whole seconds, the ttl decides which
/// names share a connection.
///
/// Locks are exclusive. Shared locks and permits of semaphores are not there.
///
/// # Limits
/// Those of all [stores with sessions](lockkeeper_sessions#limits), and:
/// - One server is the truth: a replica that takes over knows none of its primary's locks. Tokens of
///   two servers do not compare.
/// - Tokens begin with the second of the server's start, so nothing is granted within that second: it
///   counts as an outage. A clock that is set back over a restart takes tokens back.
/// - A forced release ends the session that was shown, if that still holds the name. A hold that lasted less than a
///   second, or that shared its session, can be followed by another hold of the name on that session. Then that one
///   is ended.
/// - A ttl of more than a year needs a renewal in each year.
/// - A thread that waits for the server handles no signals meanwhile, since the crate mysql waits anew after each. Other
///   threads of the process handle them; the provider has some.
#[derive(Clone, Debug)]
pub struct MySqlProvider(Arc<Store>);

impl MySqlProvider {
    /// Connects, logs in, looks at what the server is, and does once what a lock needs, all within
    /// a few times the connect timeout. Locks of two namespaces never meet.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`](lockkeeper_core::ErrorKind::Unavailable) if the server is out of reach, or has no
    ///   connection left.
    /// - [`ErrorKind::PermissionDenied`](lockkeeper_core::ErrorKind::PermissionDenied) for a wrong password, a
    ///   missing permission, or a certificate that is not trusted.
    /// - [`ErrorKind::Incompatible`](lockkeeper_core::ErrorKind::Incompatible) for what is no MySQL server, offers no
    ///   TLS, or is too old. Also for a node of a Galera cluster, and behind a proxy that shares out connections.
    /// - [`ErrorKind::InvalidValue`](lockkeeper_core::ErrorKind::InvalidValue) for options out of bounds, or a
    ///   database that does not exist.
    pub fn open(options: &MySqlOptions, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(options, namespace, Arc::new(SystemClock))
    }

    /// Opens a provider on the clock that its keepers count on.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(
        options: &MySqlOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let opened = Store::open(options, namespace, clock);
        let store = opened.map_err(|error| error.with_backend(BACKEND))?;
        Ok(Self(Arc::new(store)))
    }

    /// Returns the conditions found on opening that may break locks, as texts for people. Opening by URL
    /// reports them to the observer.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }
}

/// The parts of a provider.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) locks: SessionStore<Connection>,
    pub(crate) dialect: Dialect,
    /// What the connections know of the server that runs.
    pub(crate) run: Arc<Mutex<Run>>,
    /// The conditions found on opening that may break locks, for people.
    pub(crate) warnings: Vec<String>,
}

impl Store {
    /// Connects, and inspects the server.
    pub(crate) fn open(
        options: &MySqlOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        let sessions = Sessions::new(clock)?;
        let connector = Connector::new(options, &sessions)?;
        let limit = options.remote.connect_timeout;
        let mut connection = connector.connect(limit)?;
        let found = opening::inspect(&mut connection, limit)?;
        let text = |found: &Finding| format!("{}: {}; {}", found.what, found.meaning, found.advice);
        let shared = Arc::clone(&connector.shared);
        let dialect = connection.dialect;
        let connect = move |limit| connector.connect(limit);
        Ok(Self {
            locks: SessionStore::new(&options.remote, namespace, sessions, connection, connect),
            dialect,
            run: Arc::clone(&shared.run),
            warnings: found.iter().map(text).collect(),
        })
    }
}

impl StoreInfo for MySqlProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        self.0.locks.location("mysql", None)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.locks.capabilities()
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.0.locks.usage())
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.0)
    }
}

impl Backend for MySqlProvider {
    type Lease = Lease;

    session_verbs!();

    fn proof(&self, lease: &Lease) -> Option<Proof> {
        let known = *self.0.run.lock();
        let lease = (lease.session(), lease.name(), lease.epoch());
        Some(statements::proof(lease, self.0.dialect, known))
    }
}
