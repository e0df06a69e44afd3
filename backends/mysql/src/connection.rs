//! One connection to a server, and requests on it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lockkeeper_core::{ErrorKind, HostInstant};
use lockkeeper_remote::{Failure, OpenConnection, RestartGrace, WatchedSocket, senseless};
use mysql::prelude::Queryable;
use mysql::{Conn, Row, Statement, Value};

use crate::abandoned::AbandonedSessions;
use crate::connector::Shared;
use crate::dialect::Dialect;
use crate::failure::{classify, is_time_over, unavailable};
use crate::names::EncodedName;
use crate::permits::Permits;
use crate::requests::{Attempted, Replies, Requests, Taken};
use crate::statements::{self, EPOCH_BITS, SessionId};
use crate::wire::Wire;

/// The second in which the server was started.
const START: Duration = Duration::from_secs(1);

/// A connection; dropping it closes it, and the server frees what its session holds.
pub(crate) struct Connection {
    conn: Conn,
    pub(crate) wire: Arc<Wire>,
    open: OpenConnection,
    shared: Arc<Shared>,
    pub(crate) dialect: Dialect,
    /// Notices its end, outside of Windows.
    watched: Option<WatchedSocket>,
    /// The second in which the server was started.
    start: u64,
    /// The end of that second.
    start_is_over: HostInstant,
    grace: RestartGrace,
    /// Whether a reply is missing.
    is_in_doubt: bool,
    /// The longest that a reply may take.
    pub(crate) limit: Duration,
    /// The session's wait_timeout, if it was set.
    idle_seconds: Option<u64>,
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
        {
            let idle = Duration::from_secs(idle);
            self.shared.abandoned.add(self.session(), idle);
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
        connection.watch()?;
        Ok(connection)
    }

    /// Has the sessions learn of the end of the connection at once.
    fn watch(&mut self) -> Result<(), Failure> {
        let (sessions, id) = (Weak::clone(&self.shared.sessions), self.session());
        let on_end = move || {
            if let Some(sessions) = sessions.upgrade() {
                sessions.end(id);
            }
        };
        let watched = self.wire.watch(&self.shared.watch, on_end);
        self.watched = watched.map_err(|error| {
            let text = "the thread that watches connections cannot be started; is the limit of threads or of open files reached?";
            Failure::NotSent(unavailable(text).with_source(error))
        })?;
        Ok(())
    }

    /// Returns whether the server was seen to have closed the connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.watched.as_ref().is_some_and(WatchedSocket::has_ended)
    }

    /// Refuses to request a lock while a server that was just started grants none.
    ///
    /// Epochs begin with the second of the start: a server that is started again within it would repeat
    /// them.
    pub(crate) fn check_start(&self) -> Result<(), Failure> {
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
    pub(crate) fn session(&self) -> SessionId {
        SessionId {
            id: self.conn.connection_id().into(),
            start: self.start,
        }
    }

    /// Returns the sessions of this store that were closed before a reply came.
    pub(crate) fn abandoned(&self) -> &AbandonedSessions {
        &self.shared.abandoned
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
    pub(crate) fn set_idle(&mut self, seconds: u64) -> Result<(), Failure> {
        if self.idle_seconds != Some(seconds) {
            self.run(&self.dialect.set_idle(seconds))?;
            self.idle_seconds = Some(seconds);
        }
        Ok(())
    }

    /// Asks all of it in one statement.
    pub(crate) fn ask(&mut self, requests: &Requests) -> Result<Replies, Failure> {
        let releases = &requests.releases;
        match self.ask_once(requests) {
            // A notification that came late has ended it. Only the session itself releases what it held.
            Err(Failure::Refused(error))
                if error.kind() == ErrorKind::Unavailable && releases.len() == requests.count() =>
            {
                let names: Vec<_> = releases.iter().flat_map(Permits::names_of).collect();
                self.repeat(|it| it.release_all(&names))?;
                Ok(Replies {
                    released: vec![true; releases.len()],
                    ..Replies::default()
                })
            }
            result => result,
        }
    }

    fn ask_once(&mut self, requests: &Requests) -> Result<Replies, Failure> {
        let Requests {
            releases,
            attempts,
            checks,
            ..
        } = requests;
        if let Some(permits) = &requests.permits {
            return Ok(Replies {
                attempted: vec![self.attempt_permit(permits)?],
                ..Replies::default()
            });
        }
        let row = match (releases.as_slice(), attempts.as_slice(), checks.as_slice()) {
            ([name], [], []) => match Permits::of_lease(name) {
                None => self.execute(statements::RELEASE, slice::from_ref(name))?,
                Some((permits, slot)) => {
                    let column = permits.release(slot);
                    self.execute(&format!("SELECT {}", column.sql), &column.names)?
                }
            },
            ([], [name], []) => self.execute(statements::TRY, slice::from_ref(name))?,
            _ => self.query(&statements::several(requests))?,
        };
        if row.len() != requests.count() {
            return Err(Failure::Unanswered(senseless()));
        }
        let mut columns = (0..row.len()).map(|at| number(&row, at));
        let mut released = Vec::with_capacity(releases.len());
        for (name, column) in releases.iter().zip(columns.by_ref()) {
            // Of a permit, the rest is the number of a session that waits.
            let column = column.unwrap_or(0);
            released.push(column % 2 == 1);
            if column > 1 {
                self.notify(name, column / 2)?;
            }
        }
        let attempted = attempts.iter().zip(columns.by_ref());
        Ok(Replies {
            released,
            attempted: attempted.map(|(name, reply)| epoch(name, reply)).collect(),
            held: columns.map(|number| number == Some(1)).collect(),
        })
    }

    /// Releases those of the names that the session holds.
    pub(crate) fn release_all(&mut self, names: &[EncodedName]) -> Result<(), Failure> {
        self.query(&statements::each("RELEASE_LOCK", names))
            .map(drop)
    }

    /// Returns the sessions that hold the names.
    pub(crate) fn holders(
        &mut self,
        names: &[EncodedName],
    ) -> Result<Vec<(EncodedName, SessionId)>, Failure> {
        let row = self.query(&statements::each("IS_USED_LOCK", names))?;
        let start = self.start;
        let holder = |(at, name): (usize, &EncodedName)| {
            let id = number(&row, at)?;
            Some((name.clone(), SessionId { id, start }))
        };
        Ok(names.iter().enumerate().filter_map(holder).collect())
    }

    /// Waits in the server for `wait`, and returns what became of the attempt. The reply, and that of a
    /// request after it, may take `grace` longer.
    pub(crate) fn wait(
        &mut self,
        name: &EncodedName,
        wait: Duration,
        grace: Duration,
    ) -> Attempted {
        let sql = self.dialect.wait(name, wait);
        self.limit = wait + grace;
        let row = self.call(|conn| match conn.query_first(sql) {
            Err(error) if is_time_over(&error) => Ok(None),
            row => row,
        })?;
        self.limit = grace;
        match row {
            Some(row) => epoch(name, number(&row, 0)),
            None => {
                // The lock may have been granted just before the statement was ended.
                self.execute(statements::RELEASE, slice::from_ref(name))?;
                Ok(None)
            }
        }
    }

    /// Returns the session that holds the name.
    pub(crate) fn holder(&mut self, name: &EncodedName) -> Result<Option<SessionId>, Failure> {
        let row = self.execute(statements::HOLDER, slice::from_ref(name))?;
        let start = self.start;
        Ok(number(&row, 0).map(|id| SessionId { id, start }))
    }
}

/// Returns what the reply to an attempt means.
fn epoch(name: &EncodedName, reply: Option<u64>) -> Attempted {
    match reply {
        Some(0) => Ok(None),
        Some(number) => Ok(Some(Taken {
            name: name.clone(),
            epoch: number & EPOCH_BITS,
            slot: 0,
        })),
        None => Err(Failure::Refused(unavailable(DISTURBED))),
    }
}

/// The text of the error of an attempt without a result.
pub(crate) const DISTURBED: &str =
    "the server was disturbed while it was asked for the lock, by a KILL or by an error of its own";

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
