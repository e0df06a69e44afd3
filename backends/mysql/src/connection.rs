//! One connection to a server: the requests of its session, as statements, and how they are sent.
//!
//! In the second of the server's start nothing is granted. `UUID_SHORT()` begins with that second, so a server that
//! is killed and started again within the second would mint the same tokens. For a fallback this is no outage,
//! since other programs may lock on the server.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::HostInstant;
use lockkeeper_remote::{Failure, LAST_ATTEMPT, SocketTimeout, senseless, unavailable};
use lockkeeper_sessions::{
    Attempted, LinkShared, Replies, Requests, SessionConnection, SessionLink,
};
use mysql::prelude::Queryable;
use mysql::{Conn, Row, Statement};
use parking_lot::Mutex;

use crate::failure::{classify, is_time_over, multiplexed};
use crate::names::EncodedName;
use crate::options::BACKEND;
use crate::statements::dialect::Dialect;
use crate::statements::run::{Run, SessionId};
use crate::statements::{self, EPOCH_BITS, GREETING, number, text};

pub(crate) mod connector;
pub(crate) mod opening;
mod supplied;
pub(crate) mod wire;

use supplied::Before;
use wire::{AnyConn, CallLimits, Wire};

/// The second in which the server was started.
const START: Duration = Duration::from_secs(1);

/// The longest that a server lets a session be idle: a year.
const LONGEST_IDLE: u64 = 31_536_000;

/// The text of the error of an attempt without a result.
const DISTURBED: &str =
    "the server was disturbed while it was asked for the lock, by a KILL or by an error of its own";

/// What the connections of a provider share.
pub(crate) struct Shared {
    pub(crate) link: Arc<LinkShared<SessionId>>,
    /// Ends each call in time.
    limits: Arc<CallLimits>,
    /// What the connections know of the server's present run.
    pub(crate) run: Arc<Mutex<Run>>,
    /// Whether the application lends the connections.
    is_lent: bool,
}

/// A connection. Dropping it closes it, and the server frees the locks of its session.
pub struct Connection {
    conn: AnyConn,
    /// The former state of a session that the application lends. Such a session is closed by its socket, since
    /// dropping it returns it.
    lent: Option<Box<Lent>>,
    wire: Arc<Wire>,
    link: SessionLink<SessionId>,
    shared: Arc<Shared>,
    pub(crate) dialect: Dialect,
    /// The server's run when the connection was opened.
    run: Run,
    /// The end of the second of the start.
    start_is_over: HostInstant,
    timeout: SocketTimeout,
    prepared: BTreeMap<&'static str, Statement>,
}

/// A session that the application lends, before it is used for locks.
struct Lent {
    timeouts: [Option<Duration>; 2],
    /// `None` until it is known.
    session: Option<Before>,
}

impl lockkeeper_remote::Connection for Connection {
    fn is_quiet(&mut self, _: Duration) -> bool {
        self.wire.is_quiet()
    }

    fn give_back(mut self) {
        if let Some(lent) = self.lent.take() {
            // From here on, events of the socket do not concern the locks.
            self.link.unwatch();
            if self.restore(&lent).is_err() {
                self.lent = Some(lent);
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.lent.is_some() {
            self.wire.close();
        }
    }
}

impl SessionConnection for Connection {
    type Name = EncodedName;
    type Id = SessionId;

    const BACKEND: &'static str = BACKEND;
    const WATCH: &'static str = "lockkeeper-mysql-watch";

    fn idle(ttl: Duration) -> Duration {
        let part = u64::from(ttl.subsec_nanos() > 0);
        let seconds = ttl.as_secs().saturating_add(part);
        Duration::from_secs(seconds.clamp(1, LONGEST_IDLE))
    }

    fn session(&self) -> SessionId {
        SessionId {
            id: self.conn.connection_id().into(),
            run: self.run,
        }
    }

    fn is_session(known: SessionId, seen: SessionId) -> bool {
        known.is(seen)
    }

    fn link(&self) -> &SessionLink<SessionId> {
        &self.link
    }

    fn link_mut(&mut self) -> &mut SessionLink<SessionId> {
        &mut self.link
    }

    fn check_start(&self) -> Result<(), Failure> {
        self.link.check_start()?;
        if self.shared.link.clock.now() < self.start_is_over {
            return Err(Failure::Refused(unavailable(
                "the server was started within this second, and grants nothing before it is over; try again",
            )));
        }
        Ok(())
    }

    fn canceller(&self) -> impl Fn() + Send + Sync + 'static {
        let wire = Arc::clone(&self.wire);
        move || wire.close()
    }

    fn set_idle(&mut self, idle: Duration) -> Result<(), Failure> {
        if self.link.idle != Some(idle) {
            self.run(&self.dialect.set_idle(idle.as_secs()))?;
            self.link.idle = Some(idle);
        }
        Ok(())
    }

    fn ask(&mut self, requests: &Requests<EncodedName>) -> Result<Replies, Failure> {
        let Requests {
            releases,
            attempts,
            checks,
            ..
        } = requests;
        let row = match (releases.as_slice(), attempts.as_slice(), checks.as_slice()) {
            ([name], [], []) => self.execute(statements::RELEASE, name),
            ([], [name], []) => self.execute(statements::TRY, name),
            _ => self.query(&statements::several(requests)),
        }?;
        let seconds = if checks.is_empty() { 0 } else { 2 };
        if row.len() != requests.count() + seconds {
            return Err(Failure::Unanswered(senseless()));
        }
        let mut columns = (0..row.len()).map(|at| number(&row, at));
        let released = columns.by_ref().take(releases.len());
        let released = released.map(|number| number == Some(1)).collect();
        let attempted = columns.by_ref().take(attempts.len()).map(epoch).collect();
        let held = columns.by_ref().take(checks.len());
        let held = held.map(|number| number == Some(1)).collect();
        if let (Some(Some(last)), Some(Some(clock))) = (columns.next(), columns.next()) {
            self.note_seconds(last, clock);
        }
        Ok(Replies {
            released,
            attempted,
            held,
            ..Replies::default()
        })
    }

    fn wait(&mut self, name: &EncodedName, wait: Duration, grace: Duration) -> Attempted {
        self.link.set_limit(wait + grace);
        let row = self.query_until(&self.dialect.wait(name, wait))?;
        let Some(row) = row else {
            // The lock may have been granted just before the statement was ended.
            self.execute(statements::RELEASE, name)?;
            return Ok(None);
        };
        epoch(number(&row, 0))
    }

    fn holders(&mut self, name: &EncodedName) -> Result<Vec<SessionId>, Failure> {
        let row = self.execute(statements::HOLDER, name)?;
        Ok(number(&row, 0)
            .map(|id| self.id_of(id))
            .into_iter()
            .collect())
    }

    fn end_holder(&mut self, name: &EncodedName, session: SessionId) -> Result<(), Failure> {
        if !session.run.is(self.id_of(session.id).run) {
            return Err(Failure::Refused(unavailable(
                "the server was started again after the session was seen",
            )));
        }
        self.run(&statements::end_holder(name, session.id))
    }
}

impl Connection {
    pub(crate) fn new(
        conn: AnyConn,
        wire: Wire,
        shared: &Arc<Shared>,
        until: Instant,
    ) -> Result<Self, Failure> {
        let lent = |timeouts| {
            Box::new(Lent {
                timeouts,
                session: None,
            })
        };
        let not_sent = |error| Failure::NotSent(shared.link.server.closed().with_source(error));
        let timeouts = shared.is_lent.then(|| wire.timeouts()).transpose();
        let lent = timeouts.map_err(not_sent)?.map(lent);
        let wire = Arc::new(wire);
        shared.limits.add(&wire);
        let mut connection = Self {
            conn,
            lent,
            wire,
            link: SessionLink::new(
                &shared.link,
                until.saturating_duration_since(Instant::now()),
            ),
            shared: Arc::clone(shared),
            dialect: Dialect::MySql,
            run: Run::default(),
            start_is_over: HostInstant::NEVER,
            timeout: SocketTimeout::default(),
            prepared: BTreeMap::new(),
        };
        let row = connection.query(GREETING)?;
        let now = shared.link.clock.now();
        let numbers = number(&row, 0).zip(number(&row, 1));
        let (millis, second) = numbers.ok_or_else(|| Failure::Refused(senseless()))?;
        let up = Duration::from_millis(millis);
        // Nothing is granted in the second of the start.
        let until = second + (millis / 1000).max(1);
        connection.run = Run {
            first: second,
            last: second,
            until,
        };
        shared.run.lock().add(connection.run);
        connection.start_is_over = now + START.saturating_sub(up);
        // The server may have started at the end of that second.
        connection.link.started(up.saturating_sub(START));
        let [version, comment] = [2, 3].map(|at| text(&row, at).unwrap_or_default());
        connection.dialect = Dialect::of(&version, &comment);
        if shared.link.is_supplied() {
            let before = Before::check(&mut connection)?;
            if let Some(lent) = &mut connection.lent {
                lent.session = Some(before);
            }
        }
        let id = connection.session();
        connection.link.watch(id, connection.wire.socket())?;
        Ok(connection)
    }

    /// Restores the session and the connection as they were lent.
    fn restore(&mut self, lent: &Lent) -> Result<(), Failure> {
        self.link.set_limit(LAST_ATTEMPT);
        if self.link.idle.is_some()
            && let Some(before) = &lent.session
        {
            self.run(&before.restore)?;
        }
        for statement in take(&mut self.prepared).into_values() {
            self.call(|conn| conn.close(statement))?;
        }
        let restored = self.wire.restore_timeouts(lent.timeouts);
        restored.map_err(|error| self.failed(error.into()))
    }

    /// Refuses a server whose session has another number than its greeting said. Then the requests of the
    /// connection go to several sessions.
    fn check_id(&self, seen: Option<u64>) -> Result<(), Failure> {
        // The greeting has only 32 bits of the number.
        match seen.map(|id| id & u64::from(u32::MAX)) == Some(self.session().id) {
            true => Ok(()),
            false => Err(Failure::Refused(multiplexed())),
        }
    }

    /// Returns the identity of the session of the same server that has this number.
    pub(crate) fn id_of(&self, id: u64) -> SessionId {
        let known = *self.shared.run.lock();
        let run = if known.is(self.run) { known } else { self.run };
        SessionId { id, run }
    }

    /// Records the second that the server just had in `UUID_SHORT()`, and that of its clock.
    fn note_seconds(&self, last: u64, clock: u64) {
        self.shared.run.lock().add(self.run.renewed(last, clock));
    }

    fn call<T>(&mut self, work: impl FnOnce(&mut Conn) -> mysql::Result<T>) -> Result<T, Failure> {
        let limit = self.link.left();
        let set = self.wire.set_timeout(&mut self.timeout, limit);
        set.map_err(|error| self.failed(error.into()))?;
        self.link.add_commands(1);
        self.link.is_in_doubt = true;
        let (shared, conn) = (&self.shared, &mut self.conn);
        let server = &shared.link.server;
        let reply = (shared.limits).call(&self.wire, limit, server, || work(conn))?;
        self.link.is_in_doubt = !matches!(reply, Ok(_) | Err(mysql::Error::MySqlError(_)));
        reply.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: mysql::Error) -> Failure {
        classify(error, &self.shared.link.server, || self.wire.has_ended())
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

    /// Runs a statement that waits in the server, and returns its first row. Returns `None` if the statement timed
    /// out.
    fn query_until(&mut self, sql: &str) -> Result<Option<Row>, Failure> {
        self.call(|conn| match conn.query_first(sql) {
            Err(error) if is_time_over(&error) => Ok(None),
            row => row,
        })
    }

    /// Runs a statement about a name, which is prepared once, and returns its first row.
    fn execute(&mut self, sql: &'static str, name: &str) -> Result<Row, Failure> {
        let known = self.prepared.get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let statement = self.call(|conn| conn.prep(sql))?;
                self.prepared.insert(sql, statement.clone());
                statement
            }
        };
        let row = self.call(|conn| conn.exec_first(statement, (name,)))?;
        row.ok_or_else(|| Failure::Refused(senseless()))
    }
}

/// Returns what the reply to an attempt means.
fn epoch(reply: Option<u64>) -> Attempted {
    match reply {
        Some(0) => Ok(None),
        Some(number) => Ok(Some(number & EPOCH_BITS)),
        None => Err(Failure::Refused(unavailable(DISTURBED))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_never_shorter_than_its_ttl() {
        for (millis, seconds) in [(100, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            let idle = Connection::idle(Duration::from_millis(millis));
            assert_eq!(idle, Duration::from_secs(seconds));
        }
        let longest = Connection::idle(Duration::MAX);
        assert_eq!(longest, Duration::from_secs(LONGEST_IDLE));
    }
}
