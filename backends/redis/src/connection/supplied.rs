//! Connections that the application makes or lends, and their checks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Counts, Server, Supplier};
use parking_lot::Mutex;
use redis::ConnectionLike;

use crate::connection::Connection;
use crate::connection::link::Link;
use crate::options::{AnyConnection, RedisOptions};

/// Takes connections from the application.
pub(crate) struct Source {
    supplier: Supplier<AnyConnection>,
    is_lent: bool,
    database: u32,
    response_timeout: Duration,
    counts: Arc<Counts>,
    /// The run of the server to which the last connection led, and the time of that.
    last_run: Mutex<Option<(String, HostInstant)>>,
    /// The clock that is compared with the server's uptime. It has to advance while this host is suspended.
    clock: Arc<dyn Clock>,
}

impl Source {
    pub(crate) fn new(
        supplier: Supplier<AnyConnection>,
        options: &RedisOptions,
        counts: &Arc<Counts>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self {
            supplier,
            is_lent: options.remote.is_lent,
            database: options.database,
            response_timeout: options.remote.response_timeout,
            counts: Arc::clone(counts),
            last_run: Mutex::default(),
            clock: Arc::clone(clock),
        }
    }

    /// Takes a connection within `limit`, and checks it.
    pub(crate) fn connect(&self, server: &Server, limit: Duration) -> Result<Connection, Error> {
        let began = Instant::now();
        if limit.is_zero() {
            return Err(server.no_time_to_connect());
        }
        let taken = self.supplier.take(limit)?;
        if taken.get_db() != i64::from(self.database) {
            return Err(incompatible(&format!(
                "the application's function gave a connection in database {}, and the options say {}; locks of two databases never meet, so make them the same",
                taken.get_db(),
                self.database
            )));
        }
        let link = Link::supplied(taken, self.is_lent, self.response_timeout);
        // This connection may send a part of a command, as an encrypted one may.
        let tls = true;
        let open = self.counts.add_connection();
        let mut connection = Connection::new(link, server.clone(), tls, open);
        let run = connection.run_of_server(limit.saturating_sub(began.elapsed()));
        let (uptime, run) = run.map_err(|failure| connection.nothing_granted(failure))?;
        self.check_run(run, uptime)?;
        Ok(connection)
    }

    /// Refuses a server that was running already when another server was seen.
    fn check_run(&self, run: String, uptime: Duration) -> Result<(), Error> {
        let now = self.clock.now();
        let mut last = self.last_run.lock();
        if let Some((known, seen)) = &*last
            && *known != run
            && now.saturating_since(*seen) < uptime
        {
            return Err(incompatible(
                "the application's function gave connections to two servers, and locks on one do not exclude locks on the other; have the function connect to one server, and open the keeper again when the server moves",
            ));
        }
        *last = Some((run, now));
        Ok(())
    }
}

fn incompatible(text: &str) -> Error {
    Error::new(ErrorKind::Incompatible, text)
}
