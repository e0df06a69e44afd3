//! The parts of a provider.

use std::sync::Arc;

use lockkeeper_core::{Clock, Error};
use lockkeeper_remote::Counts;
use lockkeeper_sessions::{SessionStore, Sessions};

use crate::connection::Connection;
use crate::connector::Connector;
use crate::epoch::LastEpoch;
use crate::opening;
use crate::options::PostgresOptions;

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) locks: SessionStore<Connection>,
    pub(crate) counts: Arc<Counts>,
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
        let sessions = Sessions::new(Arc::clone(&clock))?;
        let connector = Connector::new(options, namespace, clock, &sessions)?;
        let mut first = connector.connect(options.remote.connect_timeout)?;
        opening::inspect(&mut first)?;
        let identity = opening::identity(&mut first)?;
        let shared = Arc::clone(&connector.shared);
        let connect = move |limit| connector.connect(limit);
        let (remote, server) = (&options.remote, shared.server.clone());
        Ok(Self {
            locks: SessionStore::new(remote, namespace, sessions, server, first, connect),
            counts: Arc::clone(&shared.counts),
            last_epoch: Arc::clone(&shared.last_epoch),
            database: options.name_of_database().to_owned(),
            identity,
        })
    }
}
