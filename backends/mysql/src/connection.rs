//! One connection to a server, and requests on it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lockkeeper_core::HostInstant;
use lockkeeper_remote::{
    Failure, OpenConnection, RestartGrace, WatchedSocket, senseless, unavailable,
};
use mysql::prelude::Queryable;
use mysql::{Conn, Row, Statement, Value};

use crate::connector::Shared;
use crate::dialect::Dialect;
use crate::failure::{classify, is_time_over};
use crate::guardian::Flag;
use crate::names::EncodedName;
use crate::statements::{self, SessionId};
use crate::wire::Wire;

/// The second in which the server was started.
const START: Duration = Duration::from_secs(1);

/// A connection; dropping it closes it, and the server frees what its session holds.
pub struct Connection {
    conn: Conn,
    pub(crate) wire: Arc<Wire>,
    open: OpenConnection,
    shared: Arc<Shared>,
    pub(crate) dialect: Dialect,
    /// Notices its end, outside of Windows.
    watched: Option<WatchedSocket>,
    /// The second in which the server was started.
    pub(crate) start: u64,
    /// The end of that second.
    start_is_over: HostInstant,
    grace: RestartGrace,
    /// Whether a reply is missing.
    is_in_doubt: bool,
    /// The longest that a reply may take.
    pub(crate) limit: Duration,
    /// The session's wait_timeout, if it was set.
    pub(crate) idle_seconds: Option<u64>,
    /// The time-out that is set on the socket.
    timeout: Option<Duration>,
    prepared: BTreeMap<String, Statement>,
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
            && let Some(sessions) = self.shared.sessions.upgrade()
        {
            sessions.abandon(self.id(), Duration::from_secs(idle));
        }
    }
}

impl Connection {
    pub(crate) fn new(
        conn: Conn,
        wire: Wire,
        shared: &Arc<Shared>,
        until: Instant,
    ) -> Result<Self, Failure> {
        let mut connection = Self {
            conn,
            wire: Arc::new(wire),
            open: shared.counts.add_connection(),
            shared: Arc::clone(shared),
            dialect: Dialect::MySql,
            watched: None,
            start: 0,
            start_is_over: HostInstant::NEVER,
            grace: RestartGrace::new(Duration::ZERO, Duration::ZERO, HostInstant::NEVER),
            is_in_doubt: false,
            limit: until.saturating_duration_since(Instant::now()),
            idle_seconds: None,
            timeout: None,
            prepared: BTreeMap::new(),
        };
        let row = connection.query(statements::GREETING)?;
        let now = shared.clock.now();
        let numbers = number(&row, 0).zip(number(&row, 1));
        let (millis, start) = numbers.ok_or_else(|| Failure::Refused(senseless()))?;
        let up = Duration::from_millis(millis);
        connection.start = start;
        connection.start_is_over = now + START.saturating_sub(up);
        // The start may have been at the end of its second.
        connection.grace = RestartGrace::new(shared.restart_grace, up.saturating_sub(START), now);
        let [version, comment] = [2, 3].map(|at| text(&row, at).unwrap_or_default());
        connection.dialect = Dialect::of(&version, &comment);
        // The sessions learn of the end of the connection at once.
        let (sessions, id) = (Weak::clone(&shared.sessions), connection.id());
        connection.watched = connection.watch(move || {
            if let Some(sessions) = sessions.upgrade() {
                sessions.end(id);
            }
        })?;
        Ok(connection)
    }

    /// Has `on_end` called when the server closes the connection.
    pub(crate) fn watch(
        &self,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Option<WatchedSocket>, Failure> {
        let watched = self.wire.watch(&self.shared.watch, on_end);
        watched.map_err(|error| {
            let text = "the thread that watches connections cannot be started; is the limit of threads or of open files reached?";
            Failure::NotSent(unavailable(text).with_source(error))
        })
    }

    /// Returns what the connections of the provider know of its readers.
    pub(crate) fn flag(&self) -> Arc<Flag> {
        Arc::clone(&self.shared.flag)
    }

    /// Returns whether the server was seen to have closed the connection.
    pub(crate) fn was_closed(&self) -> bool {
        self.watched.as_ref().is_some_and(WatchedSocket::has_ended)
    }

    /// Refuses to request a lock while a server that was just started grants none.
    ///
    /// Epochs begin with the second of the start: a server that is started again within it would repeat
    /// them.
    pub(crate) fn check_server_start(&self) -> Result<(), Failure> {
        let Shared { server, clock, .. } = &*self.shared;
        let now = clock.now();
        self.grace.check(server, now).map_err(Failure::Refused)?;
        if now < self.start_is_over {
            return Err(Failure::Refused(unavailable(
                "the server was started within this second, and grants nothing before it is over; try again",
            )));
        }
        Ok(())
    }

    /// Returns the identity of the session, which stays unique when the server is started again.
    pub(crate) fn id(&self) -> SessionId {
        SessionId {
            id: self.conn.connection_id().into(),
            start: self.start,
        }
    }

    fn call<T>(&mut self, work: impl FnOnce(&mut Conn) -> mysql::Result<T>) -> Result<T, Failure> {
        let limit = self.limit.max(Duration::from_millis(1));
        if self.timeout != Some(limit) {
            let set = self.wire.set_timeout(limit);
            set.map_err(|error| self.failed(error.into()))?;
            self.timeout = Some(limit);
        }
        self.open.counts().add_commands(1);
        self.is_in_doubt = true;
        // The crate panics on packets of a wrong form.
        let reply = catch_unwind(AssertUnwindSafe(|| work(&mut self.conn)))
            .map_err(|_| Failure::Unanswered(senseless()))?;
        self.is_in_doubt = !matches!(reply, Ok(_) | Err(mysql::Error::MySqlError(_)));
        reply.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: mysql::Error) -> Failure {
        classify(error, &self.shared.server, || self.wire.has_ended())
    }

    /// Runs a statement that returns nothing.
    pub(crate) fn run(&mut self, sql: &str) -> Result<(), Failure> {
        self.call(|conn| conn.query_drop(sql))
    }

    /// Runs a statement and returns all rows.
    pub(crate) fn rows(&mut self, sql: &str) -> Result<Vec<Row>, Failure> {
        self.call(|conn| conn.query(sql))
    }

    /// Runs a statement and returns its first row.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Row, Failure> {
        let row = self.call(|conn| conn.query_first(sql))?;
        row.ok_or_else(|| Failure::Refused(senseless()))
    }

    /// Runs a statement that waits in the server, and returns its first row, or `None` if the time of the statement
    /// was over.
    pub(crate) fn query_until(&mut self, sql: &str) -> Result<Option<Row>, Failure> {
        self.call(|conn| match conn.query_first(sql) {
            Err(error) if is_time_over(&error) => Ok(None),
            row => row,
        })
    }

    /// Runs a statement about names, which is prepared once, and returns its first row.
    pub(crate) fn execute(&mut self, sql: &str, names: &[EncodedName]) -> Result<Row, Failure> {
        let known = self.prepared.get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let statement = self.call(|conn| conn.prep(sql))?;
                self.prepared.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let names: Vec<Value> = names.iter().map(|name| (&**name).into()).collect();
        let row = self.call(|conn| conn.exec_first(statement, names))?;
        row.ok_or_else(|| Failure::Refused(senseless()))
    }

    /// Sets the time after which the server ends the idle session, unless it is set already.
    pub(crate) fn set_idle_seconds(&mut self, seconds: u64) -> Result<(), Failure> {
        if self.idle_seconds != Some(seconds) {
            self.run(&self.dialect.set_idle(seconds))?;
            self.idle_seconds = Some(seconds);
        }
        Ok(())
    }
}

/// Returns a number of a row, for which servers use several types; `None` for NULL.
pub(crate) fn number(row: &Row, at: usize) -> Option<u64> {
    match row.as_ref(at)? {
        Value::UInt(number) => Some(*number),
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::Bytes(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Returns a text of a row.
pub(crate) fn text(row: &Row, at: usize) -> Option<String> {
    match row.as_ref(at)? {
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}
