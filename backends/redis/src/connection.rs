//! One connection: opening it, and asking on it.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use redis::{Cmd, Parser, RedisError, Value, cmd};

use crate::failure::{
    Failure, is_from_replica, login_refused, not_redis, refused, senseless, tls_failed,
};
use crate::options::RedisOptions;
use crate::stream::{Dialer, Stream};

/// What was asked of the server, and what is open there.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) commands: AtomicU64,
    pub(crate) connections: AtomicU32,
}

/// Opens connections.
pub(crate) struct Connector {
    dialer: Dialer,
    /// Logs in and chooses the database.
    greeting: Vec<Cmd>,
    /// Whether the greeting begins with a password.
    logs_in: bool,
    tls: bool,
    place: String,
    limit: Duration,
    pub(crate) counts: Arc<Counts>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Connector {
    pub(crate) fn new(options: &RedisOptions) -> Result<Self, Error> {
        let mut greeting = Vec::new();
        if let Some(password) = &options.password {
            let mut auth = cmd("AUTH");
            if let Some(user) = &options.user {
                auth.arg(user);
            }
            auth.arg(password);
            greeting.push(auth);
        }
        if options.database != 0 {
            let mut select = cmd("SELECT");
            select.arg(options.database);
            greeting.push(select);
        }
        if options.tls && greeting.is_empty() {
            // TLS is agreed on with the first request, which is not to be a lock's.
            greeting.push(cmd("PING"));
        }
        Ok(Self {
            dialer: Dialer::new(options)?,
            greeting,
            logs_in: options.password.is_some(),
            tls: options.tls,
            place: options.place.to_string(),
            limit: options.connect_timeout,
            counts: Arc::default(),
        })
    }

    /// Where it connects to, for people.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// A connection that is logged in, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        let began = Instant::now();
        if limit.is_zero() {
            return Err(self.unreachable("there was no time left to connect"));
        }
        let dialed = self.dialer.dial(limit);
        let stream = dialed.map_err(|error| self.not_connected(error))?;
        self.counts.connections.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection {
            stream,
            parser: Parser::new(),
            counts: Arc::clone(&self.counts),
            tls: self.tls,
            is_greeted: false,
            is_to_replica: false,
            patience: None,
            place: self.place.clone(),
        };
        if self.greeting.is_empty() {
            return Ok(connection);
        }
        let mut packed = Vec::new();
        for command in &self.greeting {
            command.write_packed_command(&mut packed);
        }
        let left = limit.saturating_sub(began.elapsed());
        let mut answers = Vec::new();
        let heard = connection.converse(&packed, self.greeting.len(), left, &mut answers);
        // A server that is full answers the first of them, and hangs up.
        for (index, answer) in answers.iter().enumerate() {
            if let Value::ServerError(error) = answer {
                let is_login = self.logs_in && index == 0;
                return Err(if is_login {
                    login_refused(error)
                } else {
                    refused(error)
                });
            }
        }
        match heard {
            Ok(()) => Ok(connection),
            // Nothing of what the connection is for was sent.
            Err(Failure::Unanswered(error)) if error.kind() == ErrorKind::Unknown => {
                Err(if connection.is_greeted {
                    Error::new(ErrorKind::Unavailable, error.message())
                } else if self.tls {
                    self.unreachable("it takes connections, and then says nothing; a server without TLS does so, and is reached by redis:")
                } else {
                    self.unreachable("it takes connections, and then says nothing")
                }
                .with_source(error))
            }
            Err(failure) => Err(failure.into_error()),
        }
    }

    fn unreachable(&self, why: &str) -> Error {
        Error::unreachable(format!(
            "the server at {} cannot be reached: {why}; is it running, and the address right?",
            self.place
        ))
    }

    fn not_connected(&self, error: io::Error) -> Error {
        let why = match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                "no answer within the connect timeout".to_owned()
            }
            io::ErrorKind::PermissionDenied => {
                return Error::new(
                    ErrorKind::PermissionDenied,
                    format!("this user may not open {}", self.place),
                )
                .with_source(error);
            }
            _ => error.to_string(),
        };
        self.unreachable(&why).with_source(error)
    }
}

/// A connection; dropping it closes it. One that failed is not used again: an answer may be on its
/// way.
pub(crate) struct Connection {
    stream: Stream,
    /// Keeps what was read of an answer that has not come whole.
    parser: Parser,
    counts: Arc<Counts>,
    tls: bool,
    /// Whether the server has answered: then its TLS is as it should be, and it is not out of reach.
    pub(crate) is_greeted: bool,
    /// Whether the server has said that it is a replica.
    pub(crate) is_to_replica: bool,
    /// The timeout that is set on the socket.
    patience: Option<Duration>,
    place: String,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counts.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connection {
    /// Returns whether the connection can take a request: see [`Stream::is_quiet`].
    pub(crate) fn is_quiet(&self) -> bool {
        self.stream.is_quiet()
    }

    /// Sets how long a read or a write may take, where that is another time than before.
    pub(crate) fn set_patience(&mut self, limit: Duration) -> Result<(), Failure> {
        let limit = limit.max(Duration::from_millis(1));
        if self.patience != Some(limit) {
            self.stream.set_timeout(limit).map_err(|error| {
                Failure::NotSent(
                    Error::new(ErrorKind::Unavailable, "the connection is closed")
                        .with_source(error),
                )
            })?;
            self.patience = Some(limit);
        }
        Ok(())
    }

    /// Sends `count` commands and reads their answers. An error of the server's is an answer.
    pub(crate) fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
    ) -> Result<Vec<Value>, Failure> {
        let mut answers = Vec::with_capacity(count);
        self.converse(packed, count, limit, &mut answers)?;
        Ok(answers)
    }

    /// The same, for whom also those answers matter that came before it failed.
    fn converse(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        answers: &mut Vec<Value>,
    ) -> Result<(), Failure> {
        self.set_patience(limit)?;
        let began = Instant::now();
        let sent = u64::try_from(count).unwrap_or(u64::MAX);
        self.counts.commands.fetch_add(sent, Ordering::Relaxed);
        if let Err(error) = self.stream.write_all(packed).map_err(RedisError::from) {
            // It may have said why it hung up. What has failed once is read without waiting, but for
            // TLS.
            if !self.tls
                && !error.is_timeout()
                && let Ok(answer @ Value::ServerError(_)) = self.receive()
            {
                self.hear(answer, answers);
                if answers.len() == count {
                    return Ok(());
                }
            }
            // A plain socket takes a short command whole or not at all.
            let whole = !self.tls && count == 1;
            let error = self.cut(error);
            return Err(if whole && error.kind() == ErrorKind::Unknown {
                Failure::NotSent(Error::new(
                    ErrorKind::Unavailable,
                    format!("the server at {} has closed the connection", self.place),
                ))
            } else {
                Failure::Unanswered(error)
            });
        }
        while answers.len() < count {
            match self.receive() {
                Ok(answer) => self.hear(answer, answers),
                Err(error) => return Err(Failure::Unanswered(self.cut(error))),
            }
            if answers.len() < count && began.elapsed() > limit {
                return Err(Failure::Unanswered(self.silent()));
            }
        }
        Ok(())
    }

    /// Reads one answer, or one message of a channel. After a time-out the next call goes on where
    /// this one stopped.
    pub(crate) fn receive(&mut self) -> Result<Value, RedisError> {
        self.parser.parse_value(&mut self.stream)
    }

    /// Sends one command without reading its answer.
    pub(crate) fn send(&mut self, command: &Cmd) -> io::Result<()> {
        self.counts.commands.fetch_add(1, Ordering::Relaxed);
        self.stream.write_all(&command.get_packed_command())
    }

    fn hear(&mut self, answer: Value, answers: &mut Vec<Value>) {
        self.is_greeted = true;
        self.is_to_replica |=
            matches!(&answer, Value::ServerError(error) if is_from_replica(error));
        answers.push(answer);
    }

    /// The same for one command.
    pub(crate) fn ask(&mut self, packed: &[u8], limit: Duration) -> Result<Value, Failure> {
        let answers = self.exchange(packed, 1, limit)?;
        let answer = answers.into_iter().next();
        answer.ok_or_else(|| Failure::Unanswered(senseless()))
    }

    fn silent(&self) -> Error {
        Error::new(
            ErrorKind::Unknown,
            format!(
                "the server at {} was asked and did not answer in time",
                self.place
            ),
        )
    }

    fn cut(&self, error: RedisError) -> Error {
        if error.kind() == redis::ErrorKind::Parse {
            return not_redis(error, &self.place, self.tls);
        }
        if self.tls
            && !self.is_greeted
            && let Some(error) = tls_failed(&error, &self.place)
        {
            return error;
        }
        if error.is_timeout() {
            return self.silent().with_source(error);
        }
        Error::new(
            ErrorKind::Unknown,
            format!(
                "the connection to the server at {} was cut before it answered",
                self.place
            ),
        )
        .with_source(error)
    }
}
