//! One connection to a server, and requests on it.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{
    Counts, Dialer, Failure, OpenConnection, Server, Stream, is_quiet, nothing_granted, senseless,
    set_timeout,
};
use redis::{Cmd, Parser, RedisError, Value, cmd};

use crate::failure::{login_refused, not_redis, refused, tls_failed};
use crate::options::RedisOptions;

/// Opens connections.
pub(crate) struct Connector {
    dialer: Dialer,
    /// The commands that log in and choose the database.
    greeting: Vec<Cmd>,
    /// Whether the greeting begins with a password.
    logs_in: bool,
    tls: bool,
    pub(crate) server: Server,
    limit: Duration,
    pub(crate) counts: Arc<Counts>,
}

impl Connector {
    pub(crate) fn new(options: &RedisOptions) -> Result<Self, Error> {
        let remote = &options.remote;
        let mut greeting = Vec::new();
        if let Some(password) = &remote.password {
            let mut auth = cmd("AUTH");
            if let Some(user) = &remote.user {
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
        if remote.tls && greeting.is_empty() {
            // The first request carries the TLS handshake, so it must not be a lock's.
            greeting.push(cmd("PING"));
        }
        Ok(Self {
            dialer: Dialer::new(remote)?,
            greeting,
            logs_in: remote.password.is_some(),
            tls: remote.tls,
            server: Server::new("Redis", &remote.endpoint),
            limit: remote.connect_timeout,
            counts: Arc::default(),
        })
    }

    /// Opens a connection that is logged in, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        let began = Instant::now();
        if limit.is_zero() {
            return Err(self.server.no_time_to_connect());
        }
        let stream = self.dialer.dial(&self.server, limit)?;
        let mut connection = Connection {
            stream,
            parser: Parser::new(),
            open: self.counts.add_connection(),
            tls: self.tls,
            is_new: true,
            is_greeted: false,
            timeout: None,
            server: self.server.clone(),
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
        let conversed = connection.converse(&packed, self.greeting.len(), left, &mut answers);
        // A server that has no client left replies to the first command and closes the connection.
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
        match conversed {
            Ok(()) => Ok(connection),
            // No request of a lock was sent.
            Err(Failure::Unanswered(error)) if error.kind() == ErrorKind::Unknown => {
                if connection.is_greeted {
                    return Err(nothing_granted(Failure::Unanswered(error)));
                }
                let hint = if self.tls {
                    "; a server without TLS does so, and is reached by redis:"
                } else {
                    ""
                };
                Err(self.server.says_nothing(hint).with_source(error))
            }
            Err(failure) => Err(failure.into_error()),
        }
    }
}

/// A connection; dropping it closes it. A connection that failed is not used again: a reply may still
/// arrive on it.
pub(crate) struct Connection {
    stream: Stream,
    /// Keeps the part of a reply that was read already.
    parser: Parser,
    open: OpenConnection,
    tls: bool,
    /// Whether nothing has succeeded on it yet.
    pub(crate) is_new: bool,
    /// Whether the server has replied: then TLS works, and the server can be reached.
    pub(crate) is_greeted: bool,
    /// The time-out that is set on the socket.
    timeout: Option<Duration>,
    server: Server,
}

impl lockkeeper_remote::Connection for Connection {
    fn is_quiet(&self) -> bool {
        is_quiet(self.stream.socket())
    }
}

impl Connection {
    /// Sets the longest time that a read or a write may take.
    pub(crate) fn set_timeout(&mut self, limit: Duration) -> Result<(), Failure> {
        let limit = limit.max(Duration::from_millis(1));
        if self.timeout != Some(limit) {
            set_timeout(self.stream.socket(), limit)
                .map_err(|error| Failure::NotSent(self.server.closed().with_source(error)))?;
            self.timeout = Some(limit);
        }
        Ok(())
    }

    /// Sends `count` commands and reads their replies. An error reply is a reply.
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

    /// Sends `count` commands and reads their replies into `answers`, also before a failure.
    fn converse(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        answers: &mut Vec<Value>,
    ) -> Result<(), Failure> {
        self.set_timeout(limit)?;
        let began = Instant::now();
        self.open.counts().add_commands(count);
        if let Err(error) = self.stream.write_all(packed).map_err(RedisError::from) {
            // The server may have sent its reason before it closed. A failed socket is read without
            // waiting, except for TLS.
            if !self.tls
                && !error.is_timeout()
                && let Ok(answer @ Value::ServerError(_)) = self.receive()
            {
                self.keep_reply(answer, answers);
                if answers.len() == count {
                    return Ok(());
                }
            }
            // A plain socket sends a short command completely or not at all.
            let whole = !self.tls && count == 1;
            let error = self.cut(error);
            return Err(if whole && error.kind() == ErrorKind::Unknown {
                Failure::NotSent(self.server.closed())
            } else {
                Failure::Unanswered(error)
            });
        }
        while answers.len() < count {
            match self.receive() {
                Ok(answer) => self.keep_reply(answer, answers),
                Err(error) => return Err(Failure::Unanswered(self.cut(error))),
            }
            if answers.len() < count && began.elapsed() > limit {
                return Err(Failure::Unanswered(self.server.silent()));
            }
        }
        Ok(())
    }

    /// Reads one reply, or one message of a channel. After a time-out the next call continues where
    /// this one stopped.
    pub(crate) fn receive(&mut self) -> Result<Value, RedisError> {
        self.parser.parse_value(&mut self.stream)
    }

    /// Sends one command without reading its reply.
    pub(crate) fn send(&mut self, command: &Cmd) -> io::Result<()> {
        self.open.counts().add_commands(1);
        self.stream.write_all(&command.get_packed_command())
    }

    fn keep_reply(&mut self, answer: Value, answers: &mut Vec<Value>) {
        self.is_greeted = true;
        answers.push(answer);
    }

    /// Sends one command and reads its reply.
    pub(crate) fn ask(&mut self, packed: &[u8], limit: Duration) -> Result<Value, Failure> {
        let answers = self.exchange(packed, 1, limit)?;
        let answer = answers.into_iter().next();
        answer.ok_or_else(|| Failure::Unanswered(senseless()))
    }

    fn cut(&self, error: RedisError) -> Error {
        if error.kind() == redis::ErrorKind::Parse {
            return not_redis(error, &self.server, self.tls);
        }
        if self.tls
            && !self.is_greeted
            && let Some(error) = tls_failed(&error, &self.server)
        {
            return error;
        }
        if error.is_timeout() {
            return self.server.silent().with_source(error);
        }
        self.server.cut().with_source(error)
    }
}
