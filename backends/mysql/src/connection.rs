//! One connection to a server, and requests on it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{
    Counts, Endpoint, Failure, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES,
    OpenConnection, Server, connect_any, nothing_granted, senseless,
};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, OptsBuilder, Row, Statement, Value};
use mysql_common::proto::codec::error::PacketCodecError;
use parking_lot::Mutex;

use crate::failure::{classify, closed, is_time_over, not_connected};
use crate::names::EncodedName;
use crate::options::{MySqlOptions, bracketed};
use crate::statements::{self, EPOCH_BITS, Flavour, SessionId};
use crate::wire::Wire;

/// More than any request needs. Asking the server for its limit would cost a round trip.
const MOST_BYTES: usize = 1 << 20;
/// How many abandoned sessions are remembered.
const MOST_ABANDONED: usize = 100;
/// The longest time that a server may take to begin with a statement that it received.
const STALL: Duration = Duration::from_secs(60);

/// Sessions whose connection was closed while a reply was missing, and until when each may hold the
/// name that it asked for: the server frees that when it notices.
#[derive(Debug, Default)]
pub(crate) struct AbandonedSessions(Mutex<VecDeque<(SessionId, Instant)>>);

impl AbandonedSessions {
    fn add(&self, session: SessionId, idle: Duration) {
        let mut abandoned = self.0.lock();
        abandoned.truncate(MOST_ABANDONED);
        abandoned.push_front((session, Instant::now() + idle + STALL));
    }

    /// Returns whether the server may still hold something for such a session.
    pub(crate) fn any(&self) -> bool {
        let mut abandoned = self.0.lock();
        let now = Instant::now();
        abandoned.retain(|(_, until)| now < *until);
        !abandoned.is_empty()
    }

    /// Returns whether a session, as the server names it, is one of them.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        let abandoned = self.0.lock();
        abandoned.iter().any(|(known, _)| known.is(session))
    }
}

/// Opens connections.
pub(crate) struct Connector {
    opts: Opts,
    pub(crate) server: Server,
    endpoint: Endpoint,
    limit: Duration,
    pub(crate) counts: Arc<Counts>,
    pub(crate) abandoned: Arc<AbandonedSessions>,
}

impl Connector {
    pub(crate) fn new(options: &MySqlOptions) -> Self {
        let remote = &options.remote;
        if remote.tls {
            // The program may have chosen its cryptography already.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let opts = OptsBuilder::from_opts(options.opts())
            .prefer_socket(false)
            .tcp_nodelay(true)
            .tcp_keepalive_time_ms(u32::try_from(KEEPALIVE_IDLE.as_millis()).ok())
            .max_allowed_packet(Some(MOST_BYTES))
            .connect_attrs(Some(std::collections::HashMap::from([(
                "program_name",
                "lockkeeper",
            )])));
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        let opts = opts
            .tcp_keepalive_probe_interval_secs(u32::try_from(KEEPALIVE_INTERVAL.as_secs()).ok())
            .tcp_keepalive_probe_count(Some(KEEPALIVE_PROBES));
        Self {
            opts: opts.into(),
            server: Server::new("MySQL", &remote.endpoint),
            endpoint: remote.endpoint.clone(),
            limit: remote.connect_timeout,
            counts: Arc::default(),
            abandoned: Arc::default(),
        }
    }

    /// Opens a connection that is logged in, within `left` and the connect timeout.
    pub(crate) fn connect(&self, left: Duration) -> Result<Connection, Error> {
        let limit = left.min(self.limit);
        if limit.is_zero() {
            return Err(self.server.no_time_to_connect());
        }
        let by_name = || self.connect_to(self.opts.clone(), limit);
        match &self.endpoint {
            // The mysql crate tries the first address of a host only. With TLS it has to know the
            // host's name, and takes no address beside it.
            Endpoint::Tcp { host, port } if self.opts.get_ssl_opts().is_none() => connect_any(
                &self.server,
                (host.as_str(), *port),
                limit,
                |address, limit| {
                    let opts = OptsBuilder::from_opts(self.opts.clone());
                    let host = bracketed(&address.ip().to_string());
                    self.connect_to(opts.ip_or_hostname(Some(host)).into(), limit)
                },
            ),
            _ => by_name(),
        }
    }

    fn connect_to(&self, opts: Opts, left: Duration) -> Result<Connection, Error> {
        // The kernel takes zero for no limit.
        let left = left.max(Duration::from_millis(1));
        let until = Instant::now() + left;
        let tls = opts.get_ssl_opts().is_some();
        let opts = OptsBuilder::from_opts(opts)
            .tcp_connect_timeout(Some(left))
            .read_timeout(Some(left))
            .write_timeout(Some(left));
        // The crate panics on packets of a wrong form.
        let opened = catch_unwind(AssertUnwindSafe(|| Conn::new(opts)));
        let conn = match opened {
            Ok(Ok(conn)) => conn,
            Ok(Err(error)) => return Err(not_connected(error, &self.server, tls)),
            Err(_) => return Err(senseless()),
        };
        let wire = Wire::of(&conn).map_err(|error| {
            Error::new(
                ErrorKind::Unavailable,
                "the connection's socket cannot be had twice; is the limit of open files reached?",
            )
            .with_source(error)
        })?;
        let mut connection = Connection {
            conn,
            wire: Arc::new(wire),
            open: self.counts.add_connection(),
            abandoned: Arc::clone(&self.abandoned),
            server: self.server.clone(),
            start: 0,
            is_in_doubt: false,
            idle_seconds: None,
            timeout: None,
            try_statement: None,
            release_statement: None,
        };
        // Nothing that could be granted is asked for here.
        let outlasted = connection.outlast_first_second(until);
        outlasted.map_err(nothing_granted)?;
        Ok(connection)
    }
}

/// The result of an attempt or a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockReply {
    /// The lock was granted, with this epoch.
    Granted(u64),
    Busy,
    /// An earlier request of this store, which got no reply, holds the lock; it is being released.
    Abandoned,
    /// The server was disturbed: the lock is neither granted nor busy.
    Disturbed,
}

/// A connection; dropping it closes it, and the server frees what its session holds.
pub(crate) struct Connection {
    conn: Conn,
    pub(crate) wire: Arc<Wire>,
    open: OpenConnection,
    abandoned: Arc<AbandonedSessions>,
    server: Server,
    /// The second in which the server was started.
    start: u64,
    /// Whether a reply is missing.
    is_in_doubt: bool,
    /// The session's wait_timeout, if it was set.
    idle_seconds: Option<u64>,
    /// The time-out that is set on the socket.
    timeout: Option<Duration>,
    try_statement: Option<Statement>,
    release_statement: Option<Statement>,
}

impl lockkeeper_remote::Connection for Connection {
    fn is_quiet(&self) -> bool {
        self.wire.is_quiet()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(idle) = self.idle_seconds
            && self.is_in_doubt
        {
            let idle = Duration::from_secs(idle);
            self.abandoned.add(self.session(), idle);
        }
    }
}

impl Connection {
    /// Returns the server's number of the session.
    pub(crate) fn id(&self) -> u32 {
        self.conn.connection_id()
    }

    /// Returns the identity of the session, which stays unique when the server is started again.
    pub(crate) fn session(&self) -> SessionId {
        SessionId {
            id: self.id().into(),
            start: self.start,
        }
    }

    fn call<T>(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&mut Conn) -> mysql::Result<T>,
    ) -> Result<mysql::Result<T>, Failure> {
        let limit = limit.max(Duration::from_millis(1));
        if self.timeout != Some(limit) {
            let set = self.wire.set_timeout(limit);
            set.map_err(|error| self.failed(error.into()))?;
            self.timeout = Some(limit);
        }
        self.open.counts().add_commands(1);
        self.is_in_doubt = true;
        // The crate panics on packets of a wrong form.
        let answer = catch_unwind(AssertUnwindSafe(|| work(&mut self.conn)))
            .map_err(|_| Failure::Unanswered(senseless()))?;
        self.is_in_doubt = !matches!(answer, Ok(_) | Err(mysql::Error::MySqlError(_)));
        Ok(answer)
    }

    /// Classifies an error of a call. MySQL sends the reason (4031) before it closes an idle session,
    /// without a request; the mysql crate takes that packet for a reply out of turn. The end of the
    /// stream may arrive later than the packet, so an end that is not there yet is unknown.
    fn failed(&self, error: mysql::Error) -> Failure {
        let is_out_of_turn = matches!(
            error,
            mysql::Error::CodecError(PacketCodecError::PacketsOutOfSync)
        );
        if !is_out_of_turn {
            return classify(error, &self.server);
        }
        if self.wire.has_ended() {
            return closed(error, &self.server);
        }
        Failure::Unanswered(self.server.silent().with_source(error))
    }

    /// Runs a statement and returns its first row.
    pub(crate) fn query(&mut self, sql: &str, limit: Duration) -> Result<Option<Row>, Failure> {
        self.call(limit, |conn| conn.query_first(sql))?
            .map_err(|error| self.failed(error))
    }

    /// Runs a statement and returns all rows.
    pub(crate) fn rows(&mut self, sql: &str, limit: Duration) -> Result<Vec<Row>, Failure> {
        self.call(limit, |conn| conn.query(sql))?
            .map_err(|error| self.failed(error))
    }

    fn prepare(&mut self, sql: &str, limit: Duration) -> Result<Statement, Failure> {
        self.call(limit, |conn| conn.prep(sql))?
            .map_err(|error| self.failed(error))
    }

    fn execute(
        &mut self,
        statement: &Statement,
        name: &str,
        limit: Duration,
    ) -> Result<Option<u64>, Failure> {
        let row = self
            .call(limit, |conn| conn.exec_first(statement, (name,)))?
            .map_err(|error| self.failed(error))?;
        Ok(number(row.as_ref()))
    }

    /// Waits until the second of the server's start is over. Epochs begin with that second: a server
    /// that is started again within it would repeat them.
    fn outlast_first_second(&mut self, until: Instant) -> Result<(), Failure> {
        let left = until.saturating_duration_since(Instant::now());
        let row = self.query(statements::FIRST_SECOND, left)?;
        let (millis, start) = two(row.as_ref());
        let millis = millis.ok_or_else(|| Failure::Refused(senseless()))?;
        self.start = start.ok_or_else(|| Failure::Refused(senseless()))?;
        // More than a second: the clock was set back.
        let rest = Duration::from_millis(millis.min(1_000));
        if rest > until.saturating_duration_since(Instant::now()) {
            return Err(Failure::NotSent(Error::new(
                ErrorKind::Unavailable,
                "the server was started within this second, and grants nothing before it is over; try again",
            )));
        }
        std::thread::sleep(rest);
        Ok(())
    }

    /// Sets the time after which the server ends the idle session, unless it is set already.
    pub(crate) fn set_idle(
        &mut self,
        flavour: Flavour,
        seconds: u64,
        limit: Duration,
    ) -> Result<(), Failure> {
        if self.idle_seconds != Some(seconds) {
            self.query(&statements::set_idle(flavour, seconds), limit)?;
            self.idle_seconds = Some(seconds);
        }
        Ok(())
    }

    /// Tries to take a lock without waiting.
    pub(crate) fn try_lock(&mut self, name: &str, limit: Duration) -> Result<LockReply, Failure> {
        let statement = match &self.try_statement {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.prepare(statements::TRY, limit)?;
                self.try_statement.insert(statement).clone()
            }
        };
        let answer = self.execute(&statement, name, limit)?;
        Ok(lock_reply(answer))
    }

    /// Waits in the server for `wait`; the reply may take `grace` longer.
    pub(crate) fn wait(
        &mut self,
        flavour: Flavour,
        name: &EncodedName,
        wait: Duration,
        grace: Duration,
    ) -> Result<LockReply, Failure> {
        let sql = statements::wait(flavour, name, wait);
        match self.call(wait + grace, |conn| conn.query_first::<Row, _>(sql))? {
            Ok(row) => Ok(lock_reply(number(row.as_ref()))),
            Err(error) if is_time_over(&error) => {
                // The lock may have been granted just before the statement was ended.
                self.release(name, grace)?;
                Ok(LockReply::Busy)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Releases a lock, and returns whether this session held it.
    pub(crate) fn release(&mut self, name: &str, limit: Duration) -> Result<bool, Failure> {
        let statement = match &self.release_statement {
            Some(statement) => statement.clone(),
            None => {
                let statement = self.prepare(statements::RELEASE, limit)?;
                self.release_statement.insert(statement).clone()
            }
        };
        let answer = self.execute(&statement, name, limit)?;
        Ok(answer == Some(1))
    }

    /// Returns the session that holds the name.
    pub(crate) fn holder(
        &mut self,
        name: &EncodedName,
        limit: Duration,
    ) -> Result<Option<SessionId>, Failure> {
        let row = self
            .call(limit, |conn| {
                conn.exec_first(statements::HOLDER, (&**name,))
            })?
            .map_err(|error| self.failed(error))?;
        let (id, start) = two(row.as_ref());
        Ok(id.zip(start).map(|(id, start)| SessionId { id, start }))
    }

    /// Returns for each name whether this session holds it.
    pub(crate) fn holds(
        &mut self,
        names: &[EncodedName],
        limit: Duration,
    ) -> Result<Vec<bool>, Failure> {
        let sql = statements::holds(names);
        let row = self.query(&sql, limit)?;
        let row = row.filter(|row| row.len() == names.len());
        let row = row.ok_or_else(|| Failure::Unanswered(senseless()))?;
        Ok((0..row.len())
            .map(|at| row.as_ref(at).and_then(whole) == Some(1))
            .collect())
    }
}

fn lock_reply(answer: Option<u64>) -> LockReply {
    match answer {
        None => LockReply::Disturbed,
        Some(0) => LockReply::Busy,
        Some(number) => LockReply::Granted(number & EPOCH_BITS),
    }
}

/// Returns the only number of a row, or `None` for NULL.
fn number(row: Option<&Row>) -> Option<u64> {
    row.and_then(|row| row.as_ref(0)).and_then(whole)
}

/// Returns the two numbers of a row.
fn two(row: Option<&Row>) -> (Option<u64>, Option<u64>) {
    let at = |at| row.and_then(|row| row.as_ref(at)).and_then(whole);
    (at(0), at(1))
}

/// Reads a number, for which servers use several types.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::UInt(number) => Some(*number),
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::Bytes(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}
