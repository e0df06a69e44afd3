//! One connection to a server, and requests on it.

pub(crate) mod access;
pub(crate) mod supplied;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, HostInstant};
use lockkeeper_remote::{
    Failure, OpenConnection, RestartGrace, Server, Stream, is_quiet, nothing_granted, senseless,
};
use redis::{Cmd, InfoDict, Parser, RedisError, Value, cmd};

use crate::wire::failure::{accepted_by_primary, parse, unread};

use self::supplied::Supplied;

/// A connection. Dropping it closes it. Do not use it again after a failure: a reply may still arrive
/// on it.
pub(crate) struct Connection {
    link: Link,
    open: OpenConnection,
    tls: bool,
    /// Whether no request has succeeded on it yet.
    pub(crate) is_new: bool,
    /// Whether the server has replied. Then TLS works, and the server can be reached.
    has_replied: bool,
    /// Whether a part of a message may have arrived.
    is_in_message: bool,
    /// Whether a release was sent whose reply is to be read before all others.
    pub(crate) owes_release: bool,
    /// The end of the grace after the server's start, if the options ask for that.
    pub(crate) grace: Option<RestartGrace>,
    /// Whether the primary has moved since, if sentinels name it.
    pub(crate) move_seen: Option<MoveSeen>,
    server: Server,
}

/// The transport: the provider's own socket, or a connection of the application.
enum Link {
    Own {
        stream: Stream,
        /// Keeps the part of a reply that was read already.
        parser: Box<Parser>,
    },
    Supplied(Supplied),
}

/// How often the primary has changed: now, and when a connection was opened.
pub(crate) struct MoveSeen {
    pub(crate) moves: Arc<AtomicU64>,
    pub(crate) seen: u64,
}

impl lockkeeper_remote::Connection for Connection {
    fn is_quiet(&mut self, limit: Duration) -> bool {
        // The reply to a release may wait to be read. The connection was used a few milliseconds ago.
        self.is_current() && (self.owes_release || self.link.is_quiet(limit))
    }

    fn give_back(mut self) {
        self.link.give_back();
    }
}

impl Connection {
    /// Makes a connection without requests so far.
    fn new(link: Link, server: Server, tls: bool, open: OpenConnection) -> Self {
        Self {
            link,
            open,
            tls,
            is_new: true,
            has_replied: false,
            is_in_message: false,
            owes_release: false,
            grace: None,
            move_seen: None,
            server,
        }
    }

    /// Returns whether no other server has become the primary since the connection was opened.
    pub(crate) fn is_current(&self) -> bool {
        let seen = self.move_seen.as_ref();
        seen.is_none_or(|it| it.moves.load(Ordering::Acquire) == it.seen)
    }

    /// Returns the server, as errors name it.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Returns the socket. `None` for a connection of the application, since the redis crate does not show
    /// its socket.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        self.link.socket().map(Arc::as_ref)
    }

    /// Returns a function that closes the connection from another thread, also during a wait for a reply. `None`
    /// for a connection of the application.
    pub(crate) fn closer(&self) -> Option<impl Fn() + Send + Sync + 'static> {
        let socket = Arc::clone(self.link.socket()?);
        Some(move || drop(socket.shutdown(Shutdown::Both)))
    }

    /// Sends a release without waiting for its reply, and returns whether it did.
    ///
    /// # Errors
    /// A part of it may have been sent: the connection must be closed.
    pub(crate) fn send_release(&mut self, packed: &[u8]) -> Result<bool, RedisError> {
        if self.is_new || self.owes_release || !self.is_current() {
            return Ok(false);
        }
        let is_sent = self.link.send_at_once(packed)?;
        if is_sent {
            self.open.add_commands(1);
            self.owes_release = true;
        }
        Ok(is_sent)
    }

    /// Appends the reply to the release, if it is owed.
    fn receive_release(&mut self, answers: &mut Vec<Value>) -> Result<(), RedisError> {
        if self.owes_release {
            answers.push(self.receive()?);
            self.owes_release = false;
        }
        Ok(())
    }

    /// Receives a message of a channel. `None` if there is none within `limit`: the next call continues where this one
    /// stopped.
    pub(crate) fn next_message(&mut self, limit: Duration) -> Result<Option<Value>, RedisError> {
        match self.is_in_message {
            true => self.link.extend(limit)?,
            false => self.link.begin(limit)?,
        }
        let received = self.receive();
        self.is_in_message = matches!(&received, Err(error) if error.is_timeout());
        match received {
            Err(_) if self.is_in_message => Ok(None),
            received => received.map(Some),
        }
    }

    /// Sends one command and reads its reply.
    pub(crate) fn ask(&mut self, packed: &[u8], limit: Duration) -> Result<Value, Failure> {
        let answer = self.exchange(packed, 1, limit)?.pop();
        answer.ok_or_else(|| Failure::Unanswered(senseless()))
    }

    /// Runs one command on a primary.
    pub(crate) fn run(&mut self, command: &Cmd, limit: Duration) -> Result<Value, Failure> {
        let answer = self.ask(&command.get_packed_command(), limit)?;
        accepted_by_primary(answer)
    }

    /// Returns how long the server has been up, or somewhat less, and the identity of this run of the server.
    pub(crate) fn run_of_server(&mut self, limit: Duration) -> Result<(Duration, String), Failure> {
        let info = cmd("INFO").arg("server").get_packed_command();
        let info = match self.ask(&info, limit)? {
            Value::ServerError(error) if error.code() == "NOPERM" => {
                let text = "this user may not ask when the server was started, as `restart_grace` and connections of the application's need it; allow it +info";
                return Err(Failure::Refused(Error::new(
                    ErrorKind::PermissionDenied,
                    text,
                )));
            }
            answer => parse::<Vec<u8>>(accepted_by_primary(answer)?)?,
        };
        // The paths in the text may have any encoding.
        let info = InfoDict::new(&String::from_utf8_lossy(&info));
        let seconds = info.get("uptime_in_seconds");
        let seconds: u64 = seconds.ok_or_else(|| Failure::Refused(senseless()))?;
        // The server subtracts whole seconds of its clock, so its uptime may be up to a second too long.
        let uptime = Duration::from_secs(seconds.saturating_sub(1));
        let run = info.get("run_id");
        Ok((uptime, run.ok_or_else(|| Failure::Refused(senseless()))?))
    }

    /// Returns an error if the server was started so recently that it grants nothing.
    pub(crate) fn check_grace(&self, now: HostInstant) -> Result<(), Error> {
        self.grace
            .map_or(Ok(()), |grace| grace.check(&self.server, now))
    }

    /// Sends `count` commands and reads their replies. An error reply is a reply.
    pub(crate) fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut answers = Vec::with_capacity(count);
        self.exchange_into(&mut answers, packed, count, limit)?;
        Ok(answers)
    }

    /// Sends `count` commands and appends their replies to `answers`, behind that to a release that was sent before. After
    /// a failure it has those that came before.
    pub(crate) fn exchange_into(
        &mut self,
        answers: &mut Vec<Value>,
        packed: &[u8],
        count: usize,
        limit: Duration,
    ) -> Result<(), Failure> {
        let began = self.link.begin(limit);
        began.map_err(|error| Failure::NotSent(self.server.closed().with_source(error)))?;
        self.open.add_commands(count);
        if count > 0
            && let Err(error) = self.link.send(packed)
        {
            // A plain socket sends a short command completely or not at all.
            let is_unsent = !self.tls && count == 1;
            // The server may have sent its reason before it closed. A failed socket is read without
            // waiting.
            if is_unsent
                && !error.is_timeout()
                && self.receive_release(answers).is_ok()
                && let Ok(answer @ Value::ServerError(_)) = self.receive()
            {
                answers.push(answer);
                return Ok(());
            }
            let error = self.unread(error);
            return Err(if is_unsent && error.kind() == ErrorKind::Unknown {
                Failure::NotSent(self.server.closed())
            } else {
                Failure::Unanswered(error)
            });
        }
        let released = self.receive_release(answers);
        released.map_err(|error| Failure::Unanswered(self.unread(error)))?;
        for _ in 0..count {
            let answer = self.receive();
            answers.push(answer.map_err(|error| Failure::Unanswered(self.unread(error)))?);
        }
        Ok(())
    }

    /// Reads one reply, or one message of a channel.
    fn receive(&mut self) -> Result<Value, RedisError> {
        let value = self.link.receive()?;
        self.has_replied = true;
        Ok(value)
    }

    /// Sends one command within `limit`, without reading its reply.
    pub(crate) fn send(&mut self, command: &Cmd, limit: Duration) -> Result<(), RedisError> {
        self.link.extend(limit)?;
        self.open.add_commands(1);
        self.link.send(&command.get_packed_command())
    }

    /// Returns the error of a request that cannot have granted anything, and that may have been the first
    /// one on this connection.
    pub(crate) fn nothing_granted(&self, failure: Failure) -> Error {
        if self.has_replied || failure.error().kind() != ErrorKind::Unknown {
            return nothing_granted(failure);
        }
        let hint = if self.tls {
            "; a server without TLS does so, and is reached by redis:"
        } else {
            "; a server with TLS does so, and is reached by rediss:"
        };
        let error = self.server.says_nothing(hint);
        error.with_source(failure.into_error())
    }

    fn unread(&self, error: RedisError) -> Error {
        unread(error, &self.server, self.tls, !self.has_replied)
    }
}

impl Link {
    fn own(stream: Stream) -> Self {
        Self::Own {
            stream,
            parser: Box::new(Parser::new()),
        }
    }

    /// Returns the socket, if it can be had.
    fn socket(&self) -> Option<&Arc<TcpStream>> {
        match self {
            Self::Own { stream, .. } => Some(stream.socket()),
            Self::Supplied(_) => None,
        }
    }

    /// Begins an exchange that ends after `limit`.
    ///
    /// The redis crate has a time-out for each read and each write, but none for a whole reply. So on a connection
    /// of the application, a reply in parts takes longer, and the size of a reply has no bound.
    fn begin(&mut self, limit: Duration) -> Result<(), RedisError> {
        match self {
            Self::Own { stream, .. } => {
                stream.begin(limit);
                Ok(())
            }
            Self::Supplied(supplied) => supplied.begin(limit),
        }
    }

    /// Sets the limit of the message that is under way to `limit` from now.
    fn extend(&mut self, limit: Duration) -> Result<(), RedisError> {
        match self {
            Self::Own { stream, .. } => {
                stream.extend(limit);
                Ok(())
            }
            Self::Supplied(supplied) => supplied.begin(limit),
        }
    }

    fn send(&mut self, packed: &[u8]) -> Result<(), RedisError> {
        match self {
            Self::Own { stream, .. } => Ok(stream.write_all(packed)?),
            Self::Supplied(supplied) => supplied.send(packed),
        }
    }

    /// Sends all of a request without waiting, and returns whether it did: see [`Stream::write_at_once`]. After an error, the
    /// connection must be closed.
    fn send_at_once(&mut self, packed: &[u8]) -> Result<bool, RedisError> {
        match self {
            Self::Own { stream, .. } => Ok(stream.write_at_once(packed)?),
            Self::Supplied(_) => Ok(false),
        }
    }

    /// Receives a reply or a message. After a time-out, the next call continues where this one stopped, but a connection
    /// of the application's skips the reply that was waited for. It skips no message of RESP3.
    fn receive(&mut self) -> Result<Value, RedisError> {
        match self {
            Self::Own { stream, parser } => parser.parse_value(stream),
            Self::Supplied(supplied) => supplied.receive(),
        }
    }

    /// Returns whether an idle connection can take a request.
    fn is_quiet(&mut self, limit: Duration) -> bool {
        match self {
            Self::Own { stream, .. } => is_quiet(stream.socket()),
            Self::Supplied(supplied) => supplied.is_alive(limit),
        }
    }

    /// Gives a connection back on which nothing is under way.
    fn give_back(&mut self) {
        if let Self::Supplied(supplied) = self {
            supplied.give_back();
        }
    }
}
