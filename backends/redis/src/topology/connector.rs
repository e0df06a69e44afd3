//! Opens connections for locks: to the server at an address, or to the primary that sentinels name.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, Error};
use lockkeeper_remote::{Counts, RestartGrace, Server};
use parking_lot::Mutex;

use crate::connection::Connection;
use crate::connection::access::{Access, PROTOCOL};
use crate::connection::supplied::Source;
use crate::options::RedisOptions;
use crate::topology::sentinels::Sentinels;

/// Opens connections.
pub(crate) struct Connector {
    target: Target,
    pub(crate) server: Server,
    limit: Duration,
    restart_grace: Duration,
    /// The run of the server on the last connection, where that was asked for.
    pub(crate) run: Mutex<Option<String>>,
    clock: Arc<dyn Clock>,
}

enum Target {
    Server(Access),
    Sentinels(Box<Sentinels>),
    Supplied(Box<Source>),
}

impl Connector {
    /// What the connections ask is counted in `counts`.
    pub(crate) fn new(
        options: &RedisOptions,
        clock: Arc<dyn Clock>,
        counts: &Arc<Counts>,
    ) -> Result<Self, Error> {
        let remote = &options.remote;
        let target = match &options.supplier {
            Some(supplier) => {
                let source = Source::new(supplier.clone(), options, counts, &clock);
                Target::Supplied(Box::new(source))
            }
            None if options.sentinels.is_empty() => {
                Target::Server(Access::to_server(options, counts)?)
            }
            None => Target::Sentinels(Box::new(Sentinels::new(options, counts)?)),
        };
        Ok(Self {
            target,
            server: Server::new(PROTOCOL, &remote.endpoint),
            limit: remote.connect_timeout,
            restart_grace: remote.restart_grace,
            run: Mutex::default(),
            clock,
        })
    }

    /// Returns the sentinels that name the primary, if the options list any.
    pub(crate) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.target {
            Target::Server(_) | Target::Supplied(_) => None,
            Target::Sentinels(sentinels) => Some(sentinels),
        }
    }

    /// Opens a connection that is logged in, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        let began = Instant::now();
        let (mut connection, primary_for) = match &self.target {
            Target::Server(access) => (access.connect(limit)?, Duration::MAX),
            Target::Sentinels(sentinels) => sentinels.connect(limit)?,
            Target::Supplied(source) => (source.connect(&self.server, limit)?, Duration::MAX),
        };
        if !self.restart_grace.is_zero() {
            let left = limit.saturating_sub(began.elapsed());
            let run = connection.run_of_server(left);
            let (uptime, run) = run.map_err(|failure| connection.nothing_granted(failure))?;
            *self.run.lock() = Some(run);
            let uptime = uptime.min(primary_for);
            let grace = RestartGrace::new(self.restart_grace, uptime, self.clock.now());
            connection.grace = Some(grace);
        }
        Ok(connection)
    }
}
