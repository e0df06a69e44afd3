//! Opens connections to the server.
//!
//! PgBouncer tells a client another number than that of the server's session. Only then, a second connection keeps
//! a transaction open, which shows whether the first connection still has its session. That comes before any
//! setting or lock, which would stay on the session for other clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::Error;
use lockkeeper_remote::{Dialer, Endpoint, RemoteOptions, Server, nothing_granted};
use lockkeeper_sessions::Sessions;

use crate::connection::login::{self, Greeting, LoginError};
use crate::connection::wire::Wire;
use crate::connection::{Connection, Shared};
use crate::failure::{MULTIPLEXED, incompatible, not_connected};
use crate::names;
use crate::options::PostgresOptions;

pub(crate) struct Connector {
    dialer: Dialer,
    remote: RemoteOptions,
    database: String,
    /// Whether the pooler gives each connection one session of the server for all its time.
    is_pooler_good: AtomicBool,
    pub(crate) shared: Arc<Shared>,
}

impl Connector {
    pub(crate) fn new(
        options: &PostgresOptions,
        namespace: &str,
        sessions: &Arc<Sessions<Connection>>,
    ) -> Result<Self, Error> {
        let remote = &options.remote;
        Ok(Self {
            dialer: Dialer::new(remote)?.with_supplier(options.supplier.clone()),
            remote: remote.clone(),
            database: options.name_of_database().to_owned(),
            is_pooler_good: AtomicBool::new(false),
            shared: Arc::new(Shared {
                link: sessions.link(remote, "PostgreSQL", options.supplier.is_some()),
                last_epoch: Arc::default(),
                namespace_mark: names::namespace_mark(namespace),
            }),
        })
    }

    /// Opens a connection that is ready for locks, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let until = Instant::now() + left.min(self.remote.connect_timeout);
        let mut connection = self.log_in(until)?;
        if connection.is_pooled() && !self.is_pooler_good.load(Ordering::SeqCst) {
            self.check_pooler(&mut connection, until)?;
        }
        connection.prepare().map_err(nothing_granted)?;
        if self.shared.link.is_supplied() {
            let server = connection.system_identifier().map_err(nothing_granted)?;
            self.shared.link.check_server(&server)?;
        }
        connection.watch().map_err(nothing_granted)?;
        Ok(connection)
    }

    /// Refuses a pooler that gives a connection a session of the server for a shorter time. The next client would
    /// get the settings and the locks of the session, so this check comes before there are any.
    fn check_pooler(&self, connection: &mut Connection, until: Instant) -> Result<(), Error> {
        let mut other = self.log_in(until)?;
        if connection
            .is_multiplexed(&mut other)
            .map_err(nothing_granted)?
        {
            return Err(incompatible(MULTIPLEXED));
        }
        self.is_pooler_good.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn log_in(&self, until: Instant) -> Result<Connection, Error> {
        let server = &self.shared.link.server;
        let (remote, database) = (&self.remote, &self.database);
        let (wire, greeting) = dial(&self.dialer, remote, database, server, until)?;
        login::check_version(&greeting.version)?;
        let left = until.saturating_duration_since(Instant::now());
        Connection::new(wire, greeting, &self.shared, left).map_err(nothing_granted)
    }
}

/// Connects to the server and logs in, until `until`.
pub(crate) fn dial(
    dialer: &Dialer,
    remote: &RemoteOptions,
    database: &str,
    server: &Server,
    until: Instant,
) -> Result<(Wire, Greeting), Error> {
    let left = || until.saturating_duration_since(Instant::now());
    if left().is_zero() {
        return Err(server.no_time_to_connect());
    }
    let tls = remote.tls;
    let connected = || -> Result<(Wire, Greeting), LoginError> {
        let mut stream = dialer.dial(server, left())?;
        if tls {
            login::ask_for_tls(&mut stream.below_tls(), server)?;
        }
        let mut wire = Wire::new(stream);
        let is_private = tls || matches!(remote.endpoint, Endpoint::Unix(_));
        let send = |wire: &mut Wire| wire.send(left());
        let greeting = login::log_in(&mut wire, remote, database, is_private, server, send)?;
        Ok((wire, greeting))
    };
    connected().map_err(|error| match error {
        LoginError::Socket(error) => not_connected(error, server, tls),
        LoginError::Refused(error) => error,
    })
}
