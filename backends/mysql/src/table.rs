//! Locks in a table: connections, and the SQL of MySQL and MariaDB.
//!
//! Statements are texts without parameters, which every proxy passes on as one piece. Nothing is set in a session, and of
//! its settings only `autocommit` is relied on.

mod opening;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, Finding, Proof};
use lockkeeper_register::RegisterProvider;
use lockkeeper_register::table::{
    ConnectTable, Dialect, StatementReply, TableConnection, TableParts, TableStore, hex,
};
use lockkeeper_remote::{Counts, Failure, OpenConnection, Server, SocketTimeout, nothing_granted};
use mysql::prelude::Queryable;
use mysql::{MySqlError, Row, Value};

use crate::connection::connector::supplier;
use crate::connection::wire::{AnyConn, CallLimits, Wire};
use crate::failure::{classify, refused};
use crate::options::{BACKEND, MySqlOptions};
use crate::statements::dialect::Dialect as Kind;

/// Opens a table, which is made if it is not there. `table` is a name, or a database and a name: `database.table`.
///
/// # Errors
/// As [`MySqlProvider::open`](crate::MySqlProvider::open), and
/// [`ErrorKind::PermissionDenied`] or [`ErrorKind::Incompatible`] for a table that cannot be relied on. The text says what
/// to do. A read-only server is [`ErrorKind::Incompatible`].
pub fn open_table(
    options: &MySqlOptions,
    table: &str,
    namespace: &str,
    clock: Arc<dyn Clock>,
) -> Result<RegisterProvider, Error> {
    let of_calls = Arc::clone(&clock);
    let parts = TableParts {
        backend: BACKEND,
        protocol: "MySQL",
        options: &options.remote,
        database: None,
        table,
        namespace,
        clock,
    };
    let connector = |server: &Server, counts: &Arc<Counts>| {
        options.check()?;
        connector(options, server, counts, &of_calls)
    };
    TableStore::open(parts, connector, |connection, wanted, limit| {
        let (kind, table) = opening::find(connection, wanted, limit)?;
        Ok((MySqlSql(kind), table))
    })
}

/// Returns what opens connections.
fn connector(
    options: &MySqlOptions,
    server: &Server,
    counts: &Arc<Counts>,
    clock: &Arc<dyn Clock>,
) -> Result<ConnectTable<TextConnection>, Error> {
    let limits = CallLimits::new(clock)?;
    let supplier = supplier(options, server);
    let (of, counted) = (server.clone(), Arc::clone(counts));
    let (longest, is_lent) = (options.remote.connect_timeout, options.remote.is_lent);
    Ok(Arc::new(move |left: Duration| {
        let limit = left.min(longest);
        let conn = supplier.take(limit)?;
        let wire = Arc::new(Wire::of(&conn)?);
        limits.add(&wire);
        let mut connection = TextConnection {
            lent: is_lent
                .then(|| wire.timeouts())
                .transpose()
                .map_err(|error| of.closed().with_source(error))?,
            conn,
            wire,
            limits: Arc::clone(&limits),
            timeout: SocketTimeout::default(),
            server: of.clone(),
            _open: counted.add_connection(),
        };
        opening::check_session(&mut connection, limit).map_err(nothing_granted)?;
        Ok(connection)
    }))
}

/// A connection that runs texts.
pub(crate) struct TextConnection {
    conn: AnyConn,
    wire: Arc<Wire>,
    limits: Arc<CallLimits>,
    timeout: SocketTimeout,
    server: Server,
    /// The time-outs of a connection that the application lends.
    lent: Option<[Option<Duration>; 2]>,
    _open: OpenConnection,
}

impl lockkeeper_remote::Connection for TextConnection {
    fn is_quiet(&mut self, _: Duration) -> bool {
        self.wire.is_quiet()
    }

    fn give_back(mut self) {
        let lent = self.lent.take();
        let restored = lent.map(|timeouts| self.wire.restore_timeouts(timeouts));
        if !matches!(restored, Some(Ok(()))) {
            self.wire.close();
        }
    }
}

impl Drop for TextConnection {
    fn drop(&mut self) {
        // Dropping what is lent returns it, and a reply may be missing.
        if self.lent.is_some() {
            self.wire.close();
        }
    }
}

impl TableConnection for TextConnection {
    type Dialect = MySqlSql;

    fn closer(&self) -> impl Fn() + Send + Sync + 'static {
        let wire = Arc::clone(&self.wire);
        move || wire.close()
    }

    fn run(
        &mut self,
        statements: &[String],
        together: bool,
        limit: Duration,
    ) -> Result<Option<Vec<StatementReply>>, Failure> {
        let text = statements.join("; ");
        if !together {
            return self.ask(&text, limit);
        }
        // After an error, the rest of the text is not run. The connection is closed then, which ends the transaction. By
        // `completion_type`, a plain COMMIT may begin the next one.
        let commit = "COMMIT AND NO CHAIN NO RELEASE";
        let replies = self.ask(&format!("START TRANSACTION; {text}; {commit}"), limit)?;
        Ok(replies.map(|replies| replies.into_iter().skip(1).take(statements.len()).collect()))
    }

    fn examine(&mut self, limit: Duration) -> Result<Vec<Finding>, Failure> {
        opening::examine(self, limit)
    }
}

impl TextConnection {
    /// Runs a text of statements, and returns the reply to each. `None` if the server undid the transaction.
    fn ask(&mut self, text: &str, limit: Duration) -> Result<Option<Vec<StatementReply>>, Failure> {
        let (wire, conn, server) = (&self.wire, &mut self.conn, &self.server);
        let set = wire.set_timeout(&mut self.timeout, limit);
        let failed = |error| classify(error, server, || wire.has_ended());
        set.map_err(|error| failed(error.into()))?;
        let call = || replies(conn, text);
        match self.limits.call(wire, limit, server, call)? {
            Ok(replies) => Ok(Some(replies)),
            Err(mysql::Error::MySqlError(said))
                if matches!(said.code, CHANGED_SINCE | DEADLOCK) =>
            {
                Ok(None)
            }
            Err(mysql::Error::MySqlError(said)) if explain(&said).is_some() => {
                let (kind, advice) = explain(&said).unwrap_or((ErrorKind::Incompatible, ""));
                let error = Error::new(kind, advice).with_source(refused(&said));
                Err(Failure::Refused(error))
            }
            Err(error) => Err(failed(error)),
        }
    }
}

/// The server undid the whole transaction, since another one has changed a row after its snapshot. Only MariaDB with
/// `innodb_snapshot_isolation` does, its default since 11.6.2.
const CHANGED_SINCE: u16 = 1020;
/// The server undid the whole transaction.
const DEADLOCK: u16 = 1213;

fn replies(conn: &mut AnyConn, text: &str) -> mysql::Result<Vec<StatementReply>> {
    let mut replies = Vec::new();
    let mut sets = conn.query_iter(text)?;
    while let Some(mut set) = sets.iter() {
        let changed = set.affected_rows();
        let rows = set.by_ref().map(|row| row.map(columns));
        let rows = rows.collect::<mysql::Result<_>>()?;
        replies.push(StatementReply { rows, changed });
    }
    Ok(replies)
}

/// Returns the texts of a row; `None` for NULL.
fn columns(row: Row) -> Vec<Option<Vec<u8>>> {
    let text = |value| match value {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    };
    row.unwrap().into_iter().map(text).collect()
}

/// Returns the kind of an error of a statement about the table, and what to do. `None` for errors of other statements,
/// too.
fn explain(said: &MySqlError) -> Option<(ErrorKind, &'static str)> {
    Some(match said.code {
        1290 | 1792 | 1836 => (
            ErrorKind::Incompatible,
            "the server or the session takes no writes (a replica, or read_only), and locks are written; connect to the primary",
        ),
        1044 | 1142 | 1143 => (
            ErrorKind::PermissionDenied,
            "the user may not use the table of locks; GRANT SELECT, INSERT, UPDATE, DELETE on it",
        ),
        1054 | 1146 | 1366 => (
            ErrorKind::Incompatible,
            "the table of locks is gone, or is not as this version makes it; see `lockkeeper manual` for its migration, and open the keeper again",
        ),
        1205 => (
            ErrorKind::Unavailable,
            "another transaction has locked the table of locks for too long; find out which",
        ),
        _ => return None,
    })
}

/// The SQL of MySQL and MariaDB.
#[derive(Debug)]
pub(crate) struct MySqlSql(Kind);

impl Dialect for MySqlSql {
    const QUOTE: char = '`';
    const OPERATORS: [&str; 2] = ["=", ">"];
    const NOW: &'static str = "UTC_TIMESTAMP(6)";

    fn share(&self) -> &'static str {
        match self.0 {
            Kind::MySql => "FOR SHARE SKIP LOCKED",
            Kind::MariaDb => "LOCK IN SHARE MODE SKIP LOCKED",
        }
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        format!("x'{}'", hex(bytes))
    }

    fn after(&self, time: Duration) -> String {
        format!("{} + INTERVAL {} MICROSECOND", Self::NOW, time.as_micros())
    }

    fn encoded(&self, column: &str) -> String {
        column.to_owned()
    }

    fn decode(selected: &[u8]) -> Option<Vec<u8>> {
        Some(selected.to_owned())
    }

    /// `IGNORE` is for a row that another process has just inserted. It waits only for that insertion.
    fn insert(&self, table: &str, values: &str, condition: &str) -> String {
        format!(
            "INSERT IGNORE INTO {table} (namespace, name, version, value) SELECT {values} FROM DUAL WHERE {condition}"
        )
    }

    /// The join is `STRAIGHT`, so that no row is touched before it was selected.
    fn change(&self, table: &str, locked: &str, on: &str, set: Option<&str>) -> String {
        let join = format!("({locked}) AS l STRAIGHT_JOIN {table} AS e ON {on}");
        match set {
            Some(set) => format!(
                "UPDATE {join} SET e.{}",
                set.replacen(", value", ", e.value", 1)
            ),
            None => format!("DELETE e FROM {join}"),
        }
    }

    /// A read with a lock sees what is committed, whatever the snapshot of the transaction, or is refused because that was
    /// written after the snapshot ([`CHANGED_SINCE`]). Other databases skip the comments, and their error names the table that
    /// they look for.
    fn proof(&self, table: &str, row: &str, mark: &[u8]) -> Proof {
        let mark = self.bytes(mark);
        let sql = format!(
            "SELECT COUNT(*) AS held FROM /*!{table} AS*/ this_commit_proof_is_for_mysql_or_mariadb WHERE {row} AND LOCATE({mark}, value) > 0 /*!LOCK IN SHARE MODE*/"
        );
        let (schema, name) = table
            .trim_matches('`')
            .split_once("`.`")
            .unwrap_or_default();
        Proof {
            dialect: self.0.name(),
            statement: sql.clone().into(),
            sql,
            params: Vec::new(),
            fits: Some(format!(
                "SELECT COUNT(*) AS held FROM information_schema.tables WHERE table_schema = '{schema}' AND table_name = '{name}'"
            )),
        }
    }
}
