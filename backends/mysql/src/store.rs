//! The parts of a provider.

use std::sync::Arc;

use lockkeeper_core::{Clock, Error, Finding};
use lockkeeper_remote::Counts;
use lockkeeper_sessions::{SessionStore, Sessions};
use parking_lot::Mutex;

use crate::connection::Connection;
use crate::connector::Connector;
use crate::dialect::Dialect;
use crate::opening;
use crate::options::MySqlOptions;
use crate::statements::Run;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) locks: SessionStore<Connection>,
    pub(crate) counts: Arc<Counts>,
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
        let sessions = Sessions::new(Arc::clone(&clock))?;
        let connector = Connector::new(options, clock, &sessions)?;
        let limit = options.remote.connect_timeout;
        let mut connection = connector.connect(limit)?;
        let found = opening::inspect(&mut connection, limit)?;
        let text = |found: &Finding| format!("{}: {}; {}", found.what, found.meaning, found.advice);
        let shared = Arc::clone(&connector.shared);
        let dialect = connection.dialect;
        let connect = move |limit| connector.connect(limit);
        let server = shared.server.clone();
        let (remote, first) = (&options.remote, connection);
        Ok(Self {
            locks: SessionStore::new(remote, namespace, sessions, server, first, connect),
            counts: Arc::clone(&shared.counts),
            dialect,
            run: Arc::clone(&shared.run),
            warnings: found.iter().map(text).collect(),
        })
    }
}
