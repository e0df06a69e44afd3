//! Opens connections to the server.
//!
//! PgBouncer tells a client another number than the session's own. Only then a second connection keeps a
//! transaction open, and shows whether the first one still has its session. That comes before any setting or lock,
//! which would stay on the session for other clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, Error};
use lockkeeper_remote::{
    Counts, Dialer, Endpoint, RemoteOptions, Server, SocketWatch, nothing_granted,
};
use lockkeeper_sessions::Sessions;

use crate::connection::Connection;
use crate::epoch::LastEpoch;
use crate::failure::{MULTIPLEXED, incompatible, not_connected};
use crate::login::{self, Greeting, LoginError};
use crate::names;
use crate::options::PostgresOptions;
use crate::wire::Wire;

pub(crate) struct Connector {
    dialer: Dialer,
    remote: RemoteOptions,
    database: String,
    /// The server of the first connection, if the application connects.
    first_server: Option<OnceLock<String>>,
    /// Whether what hands out the server's sessions does so for the time of a connection.
    is_pooler_good: AtomicBool,
    pub(crate) shared: Arc<Shared>,
}

/// The parts of a connector that its connections have, too.
pub(crate) struct Shared {
    pub(crate) server: Server,
    pub(crate) counts: Arc<Counts>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) restart_grace: Duration,
    pub(crate) last_epoch: Arc<LastEpoch>,
    /// See [`NAMESPACES`](crate::connection::NAMESPACES).
    pub(crate) namespace_mark: i32,
    /// Notices the end of each connection, for the sessions.
    watch: SocketWatch,
    pub(crate) sessions: Weak<Sessions<Connection>>,
}

impl Connector {
    pub(crate) fn new(
        options: &PostgresOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
        sessions: &Arc<Sessions<Connection>>,
    ) -> Result<Self, Error> {
        let remote = &options.remote;
        Ok(Self {
            dialer: Dialer::new(remote)?.with_supplier(options.supplier.clone()),
            remote: remote.clone(),
            database: options.name_of_database().to_owned(),
            first_server: options.supplier.is_some().then(OnceLock::new),
            is_pooler_good: AtomicBool::new(false),
            shared: Arc::new(Shared {
                server: Server::new("PostgreSQL", &remote.endpoint),
                counts: Arc::default(),
                clock,
                restart_grace: remote.restart_grace,
                last_epoch: Arc::default(),
                namespace_mark: names::namespace_mark(namespace),
                watch: SocketWatch::new("lockkeeper-postgres-watch"),
                sessions: Arc::downgrade(sessions),
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
        if let Some(first) = &self.first_server {
            let server = connection.system_identifier().map_err(nothing_granted)?;
            if *first.get_or_init(|| server.clone()) != server {
                return Err(incompatible(
                    "the application's function connected to two servers, and locks on one do not exclude locks on the other; have the function connect to one server, and open the keeper again when the server moves",
                ));
            }
        }
        let (sessions, id) = (Weak::clone(&self.shared.sessions), connection.session());
        let on_end = move || {
            if let Some(sessions) = sessions.upgrade() {
                sessions.end(id);
            }
        };
        connection
            .watch(&self.shared.watch, on_end)
            .map_err(nothing_granted)?;
        Ok(connection)
    }

    /// Refuses a pooler that hands out a session of the server for less than the time of a connection. It hands out the
    /// settings and the locks of the session as well, so it is checked before there are any.
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
        let server = &self.shared.server;
        let (remote, database) = (&self.remote, &self.database);
        let (wire, greeting) = dial(&self.dialer, remote, database, server, until)?;
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
