//! The transport of a connection: the provider's own socket, or a connection of the application.

use std::io::{Error, ErrorKind, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_remote::{LAST_ATTEMPT, SocketTimeout, Stream, is_quiet, without_signals};
use redis::{ConnectionLike, Parser, RedisError, Value, cmd};

use crate::options::AnyConnection;

pub(crate) enum Link {
    Own {
        stream: Stream,
        /// Keeps the part of a reply that was read already.
        parser: Box<Parser>,
    },
    Supplied(Supplied),
}

/// A connection of the application. In the redis crate, a call that a signal interrupts fails.
pub(crate) struct Supplied {
    /// `None` after it was returned or closed.
    connection: Option<AnyConnection>,
    /// Whether dropping the connection returns it to the application.
    is_lent: bool,
    response_timeout: Duration,
    timeout: SocketTimeout,
    until: Option<Instant>,
}

impl Link {
    pub(crate) fn own(stream: Stream) -> Self {
        Self::Own {
            stream,
            parser: Box::new(Parser::new()),
        }
    }

    pub(crate) fn supplied(
        connection: AnyConnection,
        is_lent: bool,
        response_timeout: Duration,
    ) -> Self {
        Self::Supplied(Supplied {
            connection: Some(connection),
            is_lent,
            response_timeout,
            timeout: SocketTimeout::default(),
            until: None,
        })
    }

    /// Returns the socket, if it can be had.
    pub(crate) fn socket(&self) -> Option<&Arc<TcpStream>> {
        match self {
            Self::Own { stream, .. } => Some(stream.socket()),
            Self::Supplied(_) => None,
        }
    }

    /// Begins an exchange that ends after `limit`.
    ///
    /// The redis crate has a time-out for each read and each write, but none for a whole reply. So on a connection
    /// of the application, a reply in parts takes longer, and the size of a reply has no bound.
    pub(crate) fn begin(&mut self, limit: Duration) -> Result<(), RedisError> {
        match self {
            Self::Own { stream, .. } => {
                stream.begin(limit);
                Ok(())
            }
            Self::Supplied(supplied) => supplied.begin(limit),
        }
    }

    /// Sets the limit of the message that is under way to `limit` from now.
    pub(crate) fn extend(&mut self, limit: Duration) -> Result<(), RedisError> {
        match self {
            Self::Own { stream, .. } => {
                stream.extend(limit);
                Ok(())
            }
            Self::Supplied(supplied) => supplied.begin(limit),
        }
    }

    pub(crate) fn send(&mut self, packed: &[u8]) -> Result<(), RedisError> {
        match self {
            Self::Own { stream, .. } => Ok(stream.write_all(packed)?),
            Self::Supplied(supplied) => {
                let connection = supplied.connection()?;
                without_signals(|| connection.send_packed_command(packed))
            }
        }
    }

    /// Sends all of a request without waiting, and returns whether it did: see [`Stream::write_at_once`]. After an error, the
    /// connection must be closed.
    pub(crate) fn send_at_once(&mut self, packed: &[u8]) -> Result<bool, RedisError> {
        match self {
            Self::Own { stream, .. } => Ok(stream.write_at_once(packed)?),
            Self::Supplied(_) => Ok(false),
        }
    }

    /// Receives a reply or a message. After a time-out, the next call continues where this one stopped, but a connection
    /// of the application's skips the reply that was waited for. It skips no message of RESP3.
    pub(crate) fn receive(&mut self) -> Result<Value, RedisError> {
        match self {
            Self::Own { stream, parser } => parser.parse_value(stream),
            Self::Supplied(supplied) => supplied.receive(),
        }
    }

    /// Returns whether an idle connection can take a request.
    pub(crate) fn is_quiet(&mut self, limit: Duration) -> bool {
        match self {
            Self::Own { stream, .. } => is_quiet(stream.socket()),
            Self::Supplied(supplied) => supplied.is_alive(limit),
        }
    }

    /// Gives a connection back on which nothing is under way.
    pub(crate) fn give_back(&mut self) {
        if let Self::Supplied(supplied) = self
            && let Some(connection) = supplied.connection.take()
            && set_limits(&connection, None).is_err()
        {
            supplied.connection = Some(connection);
        }
    }
}

impl Supplied {
    fn connection(&mut self) -> Result<&mut AnyConnection, RedisError> {
        let gone = || Error::from(ErrorKind::NotConnected).into();
        self.connection.as_mut().ok_or_else(gone)
    }

    fn begin(&mut self, limit: Duration) -> Result<(), RedisError> {
        // A time that `Instant` cannot represent is no deadline.
        self.until = Instant::now().checked_add(limit);
        self.limit_to(limit)
    }

    fn limit_to(&mut self, limit: Duration) -> Result<(), RedisError> {
        let gone = || Error::from(ErrorKind::NotConnected);
        let connection = self.connection.as_ref().ok_or_else(gone)?;
        let set = |limit| set_limits(connection, Some(limit));
        self.timeout.set_by(limit, set)
    }

    fn receive(&mut self) -> Result<Value, RedisError> {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        match self.until.map(left) {
            Some(Duration::ZERO) => return Err(Error::from(ErrorKind::TimedOut).into()),
            Some(left) => self.limit_to(left)?,
            None => {}
        }
        let connection = self.connection()?;
        without_signals(|| connection.recv_response())
    }

    /// Sends a PING, since the crate does not show the socket. A request on a closed connection would get no reply.
    fn is_alive(&mut self, limit: Duration) -> bool {
        let limit = limit.min(self.response_timeout);
        self.limit_to(limit).is_ok()
            && self
                .connection()
                .is_ok_and(|connection| without_signals(|| connection.check_connection()))
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
