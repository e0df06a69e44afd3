//! Connections that the application makes or lends: their checks, requests on them, and how they are returned.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Counts, LAST_ATTEMPT, Server, SocketTimeout, Supplier, without_signals};
use parking_lot::Mutex;
use redis::{ConnectionLike, RedisError, Value, cmd};

use crate::connection::{Connection, Link};
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
        let link = Link::Supplied(Supplied {
            connection: Some(taken),
            is_lent: self.is_lent,
            response_timeout: self.response_timeout,
            timeout: SocketTimeout::default(),
            until: None,
        });
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

/// A connection of the application. In the redis crate, a call that a signal interrupts fails.
pub(super) struct Supplied {
    /// `None` after it was returned or closed.
    connection: Option<AnyConnection>,
    /// Whether dropping the connection returns it to the application.
    is_lent: bool,
    response_timeout: Duration,
    timeout: SocketTimeout,
    until: Option<Instant>,
}

impl Supplied {
    fn connection(&mut self) -> Result<&mut AnyConnection, RedisError> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected).into();
        self.connection.as_mut().ok_or_else(gone)
    }

    pub(super) fn begin(&mut self, limit: Duration) -> Result<(), RedisError> {
        // A time that `Instant` cannot represent is no deadline.
        self.until = Instant::now().checked_add(limit);
        self.limit_to(limit)
    }

    pub(super) fn send(&mut self, packed: &[u8]) -> Result<(), RedisError> {
        let connection = self.connection()?;
        without_signals(|| connection.send_packed_command(packed))
    }

    fn limit_to(&mut self, limit: Duration) -> Result<(), RedisError> {
        let gone = || io::Error::from(io::ErrorKind::NotConnected);
        let connection = self.connection.as_ref().ok_or_else(gone)?;
        let set = |limit| set_limits(connection, Some(limit));
        self.timeout.set_by(limit, set)
    }

    pub(super) fn receive(&mut self) -> Result<Value, RedisError> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        match self.until.map(left) {
            Some(Duration::ZERO) => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            Some(left) => self.limit_to(left)?,
            None => {}
        }
        let connection = self.connection()?;
        without_signals(|| connection.recv_response())
    }

    /// Sends a PING, since the crate does not show the socket. A request on a closed connection would get no reply.
    pub(super) fn is_alive(&mut self, limit: Duration) -> bool {
        let limit = limit.min(self.response_timeout);
        self.limit_to(limit).is_ok()
            && self
                .connection()
                .is_ok_and(|connection| without_signals(|| connection.check_connection()))
    }

    /// Gives the connection back, on which nothing is under way.
    pub(super) fn give_back(&mut self) {
        if let Some(connection) = self.connection.take()
            && set_limits(&connection, None).is_err()
        {
            self.connection = Some(connection);
        }
    }
}

impl Drop for Supplied {
    fn drop(&mut self) {
        if self.is_lent
            && let Some(connection) = self.connection.take()
        {
            close(connection);
        }
    }
}

/// Closes a connection that the application lends, on another thread. A late reply must not reach the application,
/// and the redis crate has no call that closes. So a command asks the server to close the connection.
fn close(mut connection: AnyConnection) {
    let quit = move || {
        let until = Instant::now() + LAST_ATTEMPT;
        let is_told = set_limits(&connection, Some(LAST_ATTEMPT)).is_ok()
            && connection
                .send_packed_command(&cmd("QUIT").get_packed_command())
                .is_ok();
        // By the end of the stream, the application's pool notices that the connection is closed.
        while is_told && connection.is_open() && Instant::now() < until {
            let _ = connection.recv_response();
        }
    };
    let thread = thread::Builder::new().name("lockkeeper-give-back".to_owned());
    let _ = thread.spawn(quit);
}

fn set_limits(connection: &redis::Connection, limit: Option<Duration>) -> Result<(), RedisError> {
    connection.set_read_timeout(limit)?;
    connection.set_write_timeout(limit)
}
