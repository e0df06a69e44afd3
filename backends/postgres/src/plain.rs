//! A session that runs statements as plain texts, for the table of locks.
//!
//! [`PlainClient`] is also for the programs of this project that compare and measure. Hidden, and not part of the
//! interface: it connects as a URL says, with TLS, socket and login, and a client of its own would repeat that.

use std::io;
use std::mem;
use std::time::{Duration, Instant};

use fallible_iterator::FallibleIterator;
use lockkeeper_core::Error;
use lockkeeper_remote::{Dialer, Server};
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend;

use crate::connection::connector::dial;
use crate::connection::wire::Wire;
use crate::failure::{ServerError, classify};
use crate::options::PostgresOptions;

/// A session that runs statements as plain texts. Dropping it closes it.
pub struct PlainClient {
    wire: Wire,
    server: Server,
    pid: i32,
}

/// The reply to a text of one or more statements.
#[derive(Clone, Debug, Default)]
pub struct PlainReply {
    /// The rows of all statements, as texts; `None` is NULL.
    pub rows: Vec<Vec<Option<String>>>,
    /// How many rows the last statement has read or changed.
    pub count: u64,
}

/// Why a text of statements failed.
#[derive(Clone, Debug)]
pub enum PlainError {
    /// The time of a wait for a lock is over (`lock_timeout`); the session can be used.
    LockTimeout,
    /// Anything else.
    Failed(Error),
}

impl PlainClient {
    /// Connects and logs in, within the connect timeout.
    ///
    /// # Errors
    /// As on opening a provider.
    pub fn connect(options: &PostgresOptions) -> Result<Self, Error> {
        options.check()?;
        let server = Server::new("PostgreSQL", &options.remote.endpoint);
        let until = Instant::now() + options.remote.connect_timeout;
        Self::dial(&Dialer::new(&options.remote)?, options, &server, until)
    }

    /// Connects and logs in, until `until`.
    pub(crate) fn dial(
        dialer: &Dialer,
        options: &PostgresOptions,
        server: &Server,
        until: Instant,
    ) -> Result<Self, Error> {
        let (remote, database) = (&options.remote, options.name_of_database());
        let (wire, greeting) = dial(dialer, remote, database, server, until)?;
        Ok(Self {
            wire,
            server: server.clone(),
            pid: greeting.pid,
        })
    }

    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Returns the number that the server knows the session by.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs a text of one or more statements, and returns when all are done. Without `BEGIN` they are one
    /// transaction.
    ///
    /// # Errors
    /// The first statement that failed, or no reply within `limit`: the session is of no use then.
    pub fn run(&mut self, sql: &str, limit: Duration) -> Result<PlainReply, PlainError> {
        match self.exchange(sql, limit) {
            Ok(Ok(replies)) => Ok(PlainReply {
                count: replies.last().map_or(0, |reply| reply.count),
                rows: replies.into_iter().flat_map(|reply| reply.rows).collect(),
            }),
            Ok(Err(error)) if error.state == ServerError::LOCK_TIMEOUT => {
                Err(PlainError::LockTimeout)
            }
            Ok(Err(error)) => Err(PlainError::Failed(error.explain(&self.server))),
            Err(error) => {
                let failure = classify(error, &self.server);
                Err(PlainError::Failed(failure.into_error()))
            }
        }
    }

    /// Runs a text of one or more statements, and returns the reply to each.
    pub(crate) fn exchange(
        &mut self,
        sql: &str,
        limit: Duration,
    ) -> io::Result<Result<Vec<PlainReply>, ServerError>> {
        frontend::query(sql, &mut self.wire.out)?;
        self.wire.send(limit)?;
        let (mut replies, mut reply, mut refused) = (Vec::new(), PlainReply::default(), None);
        loop {
            match self.wire.receive()? {
                Message::DataRow(body) => reply.rows.push(texts(&body)?),
                // `UPDATE 1`, `INSERT 0 1`, `BEGIN`
                Message::CommandComplete(body) => {
                    let count = body.tag()?.rsplit(' ').next();
                    reply.count = count.and_then(|count| count.parse().ok()).unwrap_or(0);
                    replies.push(mem::take(&mut reply));
                }
                Message::ErrorResponse(body) => {
                    let error = ServerError::read(&body)?;
                    if error.is_fatal {
                        return Ok(Err(error));
                    }
                    refused = Some(error);
                }
                Message::ReadyForQuery(_) => return Ok(refused.map_or(Ok(replies), Err)),
                _ => {}
            }
        }
    }
}

fn texts(body: &DataRowBody) -> io::Result<Vec<Option<String>>> {
    let text = |range: Option<std::ops::Range<usize>>| {
        let bytes = range.and_then(|range| body.buffer().get(range));
        Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    };
    body.ranges().map(text).collect()
}
