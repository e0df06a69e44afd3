//! One connection to a server, and requests on it.
//!
//! `plan_cache_mode` is set since the server would plan a prepared statement anew for its first five runs. A
//! connection to a replica is replaced: its address may lead to the primary by now.

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use lockkeeper_remote::{Failure, senseless};
use lockkeeper_sessions::{LinkShared, SessionLink};
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, Message};
use postgres_protocol::message::frontend::{self, BindError};

use crate::failure::{ServerError, classify};
use crate::names::shown::ShownNames;
use crate::statements::epoch::LastEpoch;
use crate::statements::{MARKS, NAMESPACES, SessionId};

pub(crate) mod connector;
pub(crate) mod login;
pub(crate) mod opening;
pub(crate) mod wire;

use login::Greeting;
use wire::Wire;

/// Asks for the server's own number of the session.
///
/// Until the reply to [`SEARCH_PATH`], a name in a statement may mean an object that another user of the database made. So the
/// statements up to [`PREPARE`] name the schema of each function, operator and type. `BEGIN` and this one come before it,
/// since a setting would stay on a session that a pool hands to others.
const PID: &str = "SELECT pg_catalog.pg_backend_pid()";

/// Sets search_path, so that no user's object replaces a built-in one.
const SEARCH_PATH: &str = "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false)";

/// Asks whether the server is a replica, and for how many seconds it has known its locks.
///
/// `pg_stat_bgwriter` is reset when the server recovers from the crash of a session, which forgets all locks and leaves
/// the time of the start as it was.
const START: &str = "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) greatest(pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_stat_get_bgwriter_stat_reset_time()))";

/// Prepares a session. The limits of time that a database or a user may have are for applications: they would end
/// a wait.
const PREPARE: &str = "SELECT pg_catalog.pg_advisory_lock_shared($1, $2), pg_catalog.pg_advisory_lock_shared($3, $4), pg_catalog.set_config('statement_timeout', '0', false), pg_catalog.set_config('idle_in_transaction_session_timeout', '0', false), CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL THEN pg_catalog.set_config('transaction_timeout', '0', false) END, pg_catalog.set_config('default_transaction_isolation', 'read committed', false), pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', false)";

/// Asks for a number that a server has from its creation on, and its port: a copy of the server has the same number.
const SYSTEM: &str =
    "SELECT system_identifier || ' ' || current_setting('port') FROM pg_control_system()";

/// Makes the server look, while a session waits for a lock, whether its client is still there. Not every system that
/// PostgreSQL runs on can, so a refusal is ignored: the wait then ends with its `lock_timeout`.
const CHECK_CLIENT: &str =
    "SELECT pg_catalog.set_config('client_connection_check_interval', '100', false)";

/// What the connections of a provider share.
pub(crate) struct Shared {
    pub(crate) link: Arc<LinkShared<SessionId>>,
    pub(crate) last_epoch: Arc<LastEpoch>,
    /// See [`NAMESPACES`].
    namespace_mark: i32,
}

/// A connection; dropping it closes it, and the server frees what its session holds.
pub struct Connection {
    pub(crate) wire: Wire,
    pub(crate) link: SessionLink<SessionId>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: SessionId,
    /// Whether the server's own number of the session is another one than the client was told.
    is_pooled: bool,
    pub(crate) version: String,
    pub(crate) is_replica: bool,
    /// The names of the prepared statements. Behind a pooler, two connections with one name for two statements would
    /// run the wrong one.
    prepared: HashMap<String, String>,
    last_prepared: u64,
    /// Whether the reply to a statement is to be read before that to the next one.
    owes_reply: bool,
    /// What the server replied to it, when another statement was first.
    owed_reply: Option<Reply>,
    /// What `pg_stat_activity` shows of the session.
    pub(crate) shown: ShownNames,
}

/// A row of a reply: texts, as PostgreSQL writes values.
pub(crate) struct Row(DataRowBody);

impl Row {
    /// Returns a text, `None` for NULL.
    pub(crate) fn text(&self, at: usize) -> Option<&str> {
        let range = self.0.ranges().nth(at).ok().flatten().flatten()?;
        std::str::from_utf8(self.0.buffer().get(range)?).ok()
    }

    /// Returns a number, `None` for NULL and for what is none.
    pub(crate) fn number<T: std::str::FromStr>(&self, at: usize) -> Option<T> {
        self.text(at)?.parse().ok()
    }

    /// Returns whether a value is true.
    pub(crate) fn is_true(&self, at: usize) -> bool {
        self.text(at) == Some("t")
    }
}

/// The values of a statement. They are sent as text, so the statement gives their type, such as `$1::int8`, unless the
/// server infers it.
pub(crate) type Values<'a> = &'a [&'a dyn Display];

/// What the server replied to one statement.
pub(crate) type Reply = Result<Vec<Row>, ServerError>;

impl lockkeeper_remote::Connection for Connection {
    fn is_quiet(&mut self, _: Duration) -> bool {
        !self.link.is_in_doubt && self.wire.is_quiet()
    }
}

impl Connection {
    /// A connection that is logged in. Before its first lock it needs [`prepare`](Self::prepare).
    pub(crate) fn new(
        wire: Wire,
        greeting: Greeting,
        shared: &Arc<Shared>,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let mark = fastrand::i32(..);
        let mut connection = Self {
            wire,
            link: SessionLink::new(&shared.link, limit),
            shared: Arc::clone(shared),
            session: SessionId { pid: 0, mark },
            is_pooled: false,
            version: greeting.version,
            is_replica: false,
            prepared: HashMap::new(),
            last_prepared: 0,
            owes_reply: false,
            owed_reply: None,
            shown: ShownNames::default(),
        };
        let pid = connection.query(PID, &[])?.number(0);
        let pid = pid.ok_or_else(|| Failure::Refused(senseless()))?;
        connection.session.pid = pid;
        connection.is_pooled = pid != greeting.pid;
        Ok(connection)
    }

    /// Returns what tells the server, and its replicas, from others.
    pub(crate) fn system_identifier(&mut self) -> Result<String, Failure> {
        let row = self.query(SYSTEM, &[])?;
        let system = row.text(0).map(str::to_owned);
        system.ok_or_else(|| Failure::Refused(senseless()))
    }

    /// Prepares the session for locks.
    pub(crate) fn prepare(&mut self) -> Result<(), Failure> {
        let mark = self.session.mark;
        let namespace = self.shared.namespace_mark;
        let values: Values<'_> = &[&MARKS, &mark, &NAMESPACES, &namespace];
        let none: Values<'_> = &[];
        let all = [
            (SEARCH_PATH, none),
            (START, none),
            (PREPARE, values),
            (CHECK_CLIENT, none),
        ];
        let mut replies = self.pipeline(&all)?.into_iter();
        let mut next = || self.first(replies.next().unwrap_or(Ok(Vec::new())));
        let (_, start, _) = (next()?, next()?, next()?);
        self.is_replica = start.is_true(0);
        let up = start.number(1).map(Duration::try_from_secs_f64);
        let up = up.and_then(Result::ok).unwrap_or_default();
        self.link.started(up);
        Ok(())
    }

    /// Returns whether the server ran a statement of this connection in another session than the first one.
    ///
    /// `other` is another connection by the same way. A transaction on it keeps one of the server's sessions from this
    /// connection, if sessions are handed out for a transaction or a statement.
    pub(crate) fn is_multiplexed(&mut self, other: &mut Self) -> Result<bool, Failure> {
        // The pool has one session free, and this connection would wait for that until the transaction ends.
        if self.session.pid == other.session.pid {
            return Ok(true);
        }
        let begun = other.execute("BEGIN", &[]);
        let pids = begun.and_then(|_| Ok((self.query(PID, &[])?, other.query(PID, &[])?)));
        match pids {
            Ok((own, theirs)) => {
                let pid = Some(self.session.pid);
                Ok(own.number(0) != pid || theirs.number(0) == pid)
            }
            // No transaction, or no prepared statement, outlives a statement.
            Err(Failure::Refused(_)) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    /// Has the sessions notice its end from here on.
    fn watch(&mut self) -> Result<(), Failure> {
        self.link.watch(self.session, self.wire.socket())
    }

    /// Returns whether something between this program and the server hands out the server's sessions.
    pub(crate) fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// Runs a statement, which is prepared once, and returns its rows.
    pub(crate) fn execute(&mut self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, Failure> {
        let reply = self.pipeline(&[(sql, values)])?.pop();
        let reply = reply.unwrap_or(Ok(Vec::new()));
        reply.map_err(|error| error.into_failure(&self.shared.link.server))
    }

    /// Runs a statement as [`execute`](Self::execute) does, and returns its first row.
    pub(crate) fn query(&mut self, sql: &str, values: Values<'_>) -> Result<Row, Failure> {
        let rows = self.execute(sql, values)?;
        self.first(Ok(rows))
    }

    fn first(&self, reply: Reply) -> Result<Row, Failure> {
        let rows = reply.map_err(|error| error.into_failure(&self.shared.link.server))?;
        let row = rows.into_iter().next();
        row.ok_or_else(|| Failure::Refused(senseless()))
    }

    /// Runs several statements in one round trip, each in a transaction of its own, and returns the replies in
    /// their order. The statements are prepared once.
    pub(crate) fn pipeline(
        &mut self,
        statements: &[(&str, Values<'_>)],
    ) -> Result<Vec<Reply>, Failure> {
        self.link.add_commands(statements.len());
        let mut unprepared = Vec::new();
        for (at, (sql, values)) in statements.iter().enumerate() {
            let name = match self.prepared.get(*sql) {
                Some(name) => name,
                None => {
                    self.last_prepared += 1;
                    let name = format!("lockkeeper{:x}_{}", self.session.mark, self.last_prepared);
                    let parsed = frontend::parse(&name, sql, [], &mut self.wire.out);
                    parsed.map_err(|error| self.failed(error))?;
                    unprepared.push(*sql);
                    self.prepared.entry((*sql).to_owned()).or_insert(name)
                }
            };
            let shown = self.shown.sql.as_deref();
            let shown = shown.filter(|_| at + 1 == statements.len());
            let written = write_statement(name, values, shown, &mut self.wire.out);
            written.map_err(|error| self.failed(error))?;
        }
        let replies = self.exchange(statements.len())?;
        for ((sql, _), reply) in statements.iter().zip(&replies) {
            // The statement itself may be what the server refused. Else it keeps it, also after an error.
            if reply.as_ref().is_err_and(|error| !error.is_prepared) && unprepared.contains(sql) {
                self.prepared.remove(*sql);
            }
        }
        Ok(replies)
    }

    /// Sends a statement and does not wait, neither for the socket nor for the reply. Returns false, and sends nothing, if
    /// the socket does not take it at once, or if it was not prepared before.
    pub(crate) fn send(&mut self, sql: &str, values: Values<'_>) -> Result<bool, Failure> {
        let Some(name) = self.prepared.get(sql).filter(|_| !self.owes_reply) else {
            return Ok(false);
        };
        let written = write_statement(name, values, self.shown.sql.as_deref(), &mut self.wire.out);
        written.map_err(|error| self.failed(error))?;
        self.link.is_in_doubt = true;
        let sent = self.wire.send_at_once();
        self.owes_reply = sent.map_err(|error| self.failed(error))?;
        self.link.is_in_doubt = self.owes_reply;
        self.link.add_commands(usize::from(self.owes_reply));
        Ok(self.owes_reply)
    }

    /// Returns the reply to what [`send`](Self::send) has sent.
    pub(crate) fn owed_reply(&mut self) -> Result<Reply, Failure> {
        if self.owes_reply {
            self.exchange(0)?;
        }
        let reply = self.owed_reply.take();
        reply.ok_or_else(|| Failure::Unanswered(senseless()))
    }

    /// Sends what was written, and reads the replies to so many statements.
    fn exchange(&mut self, statements: usize) -> Result<Vec<Reply>, Failure> {
        self.link.is_in_doubt = true;
        let sent = self.wire.send(self.link.left());
        sent.map_err(|error| self.failed(error))?;
        if self.owes_reply {
            self.owed_reply = Some(self.reply()?);
            self.owes_reply = false;
        }
        let replies = (0..statements)
            .map(|_| self.reply())
            .collect::<Result<_, _>>()?;
        self.link.is_in_doubt = false;
        Ok(replies)
    }

    /// Reads the reply to one statement.
    fn reply(&mut self) -> Result<Reply, Failure> {
        let (mut reply, mut is_prepared) = (Ok(Vec::new()), false);
        loop {
            let message = self.wire.receive();
            match message.map_err(|error| self.failed(error))? {
                Message::DataRow(body) => {
                    if let Ok(rows) = &mut reply {
                        rows.push(Row(body));
                    }
                }
                Message::ErrorResponse(body) => {
                    let error = ServerError::read(&body);
                    let mut error = error.map_err(|error| self.failed(error))?;
                    error.is_prepared = is_prepared;
                    if error.is_fatal {
                        self.link.is_in_doubt = false;
                        return Err(error.into_failure(&self.shared.link.server));
                    }
                    reply = Err(error);
                }
                Message::ReadyForQuery(_) => return Ok(reply),
                Message::ParseComplete => is_prepared = true,
                Message::BindComplete
                | Message::CommandComplete(_)
                | Message::EmptyQueryResponse
                | Message::NoticeResponse(_)
                | Message::ParameterStatus(_) => {}
                _ => return Err(Failure::Unanswered(senseless())),
            }
        }
    }

    fn failed(&self, error: std::io::Error) -> Failure {
        classify(error, &self.shared.link.server)
    }
}

/// Appends the messages that run a prepared statement, and tell the server what to show as the last one.
fn write_statement(
    name: &str,
    values: Values<'_>,
    shown: Option<&str>,
    out: &mut BytesMut,
) -> std::io::Result<()> {
    let as_text = |value: &&dyn Display, out: &mut BytesMut| {
        write!(out, "{value}")?;
        Ok(IsNull::No)
    };
    let bound = frontend::bind("", name, [], values, as_text, [], out);
    bound.map_err(|error| match error {
        BindError::Conversion(error) => std::io::Error::other(error),
        BindError::Serialization(error) => error,
    })?;
    frontend::execute("", 0, out)?;
    if let Some(shown) = shown {
        frontend::parse("", shown, [], out)?;
    }
    frontend::sync(out);
    Ok(())
}
