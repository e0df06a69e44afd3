//! Locks in a table: connections, and the SQL of PostgreSQL.
//!
//! Statements are texts without parameters (the simple protocol), which every pooler passes on as one piece. Nothing is set
//! in a session, so nothing is left for the pooler's next client, and no setting of the session is relied on.
//!
//! Several statements of one text are one transaction.

mod opening;

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper_core::{Clock, Error, ErrorKind, Finding, Proof};
use lockkeeper_register::RegisterProvider;
use lockkeeper_register::table::{
    ConnectTable, Dialect, StatementReply, TableConnection, TableParts, TableStore, hex,
};
use lockkeeper_remote::{Counts, Dialer, Failure, OpenConnection, Server};

use crate::failure::{ServerError, classify};
use crate::options::{BACKEND, PostgresOptions};
use crate::plain::PlainClient;
use crate::statements::DIALECT;

/// Opens a table, which is made if it is not there. `table` is a name, or a schema and a name: `schema.table`.
///
/// # Errors
/// As [`PostgresProvider::open`](crate::PostgresProvider::open), and
/// [`ErrorKind::PermissionDenied`] or [`ErrorKind::Incompatible`] for a table that cannot be relied on. The text says what
/// to do. A replica is [`ErrorKind::Incompatible`].
pub fn open_table(
    options: &PostgresOptions,
    table: &str,
    namespace: &str,
    clock: Arc<dyn Clock>,
) -> Result<RegisterProvider, Error> {
    let parts = TableParts {
        backend: BACKEND,
        protocol: "PostgreSQL",
        options: &options.remote,
        database: Some(options.name_of_database()),
        table,
        namespace,
        clock,
    };
    let connector = |server: &Server, counts: &Arc<Counts>| {
        options.check()?;
        connector(options, server, counts)
    };
    TableStore::open(parts, connector, |connection, wanted, limit| {
        Ok((PostgresSql, opening::find(connection, wanted, limit)?))
    })
}

/// Returns what opens connections.
fn connector(
    options: &PostgresOptions,
    server: &Server,
    counts: &Arc<Counts>,
) -> Result<ConnectTable<PlainConnection>, Error> {
    let dialer = Dialer::new(&options.remote)?.with_supplier(options.supplier.clone());
    let (own, of, counted) = (options.clone(), server.clone(), Arc::clone(counts));
    Ok(Arc::new(move |left: Duration| {
        let until = Instant::now() + left.min(own.remote.connect_timeout);
        Ok(PlainConnection {
            client: PlainClient::dial(&dialer, &own, &of, until)?,
            server: of.clone(),
            _open: counted.add_connection(),
        })
    }))
}

/// A connection that runs texts.
pub(crate) struct PlainConnection {
    client: PlainClient,
    server: Server,
    _open: OpenConnection,
}

impl lockkeeper_remote::Connection for PlainConnection {
    fn is_quiet(&mut self, _: Duration) -> bool {
        self.client.wire().is_quiet()
    }
}

impl TableConnection for PlainConnection {
    type Dialect = PostgresSql;

    fn closer(&self) -> impl Fn() + Send + Sync + 'static {
        let socket: Arc<TcpStream> = Arc::clone(self.client.wire().socket());
        move || drop(socket.shutdown(Shutdown::Both))
    }

    fn run(
        &mut self,
        statements: &[String],
        _: bool,
        limit: Duration,
    ) -> Result<Option<Vec<StatementReply>>, Failure> {
        let replies = self.client.exchange(&statements.join("; "), limit);
        match replies.map_err(|error| classify(error, &self.server))? {
            Ok(replies) => {
                let bytes = |value: Option<String>| value.map(String::into_bytes);
                let row = |row: Vec<_>| row.into_iter().map(bytes).collect();
                let reply = replies.into_iter().map(|reply| StatementReply {
                    rows: reply.rows.into_iter().map(row).collect(),
                    changed: reply.count,
                });
                Ok(Some(reply.collect()))
            }
            Err(error) if error.is_conflict() => Ok(None),
            Err(error) => Err(self.failure(&error)),
        }
    }

    fn examine(&mut self, limit: Duration) -> Result<Vec<Finding>, Failure> {
        opening::examine(self, limit)
    }
}

impl PlainConnection {
    /// Makes a table. Returns false if something has its name, or is given it at the same time.
    fn make(&mut self, migration: &str, limit: Duration) -> Result<bool, Failure> {
        let made = self.client.exchange(migration, limit);
        match made.map_err(|error| classify(error, &self.server))? {
            Ok(_) => Ok(true),
            Err(error) if error.is_duplicate() => Ok(false),
            Err(error) => Err(self.failure(&error)),
        }
    }

    fn failure(&self, error: &ServerError) -> Failure {
        match error.is_fatal {
            true => Failure::Closed(
                self.server
                    .closed()
                    .with_source(error.explain(&self.server)),
            ),
            false => Failure::Refused(self.explain(error)),
        }
    }

    /// Returns the error of a statement about the table.
    fn explain(&self, error: &ServerError) -> Error {
        let (kind, advice) = match &*error.state {
            "25006" => (
                ErrorKind::Incompatible,
                "the server or the session takes no writes (a replica, or default_transaction_read_only), and locks are written; connect to the primary, with a user that may write",
            ),
            "42501" => (
                ErrorKind::PermissionDenied,
                "the user may not use the table of locks; GRANT SELECT, INSERT, UPDATE, DELETE on it, and USAGE on its schema",
            ),
            "42P01" | "42703" | "42804" => (
                ErrorKind::Incompatible,
                "the table of locks is gone, or is not as this version makes it; see `lockkeeper manual` for its migration, and open the keeper again",
            ),
            _ => return error.explain(&self.server),
        };
        let explained = error.explain(&self.server);
        Error::new(kind, advice).with_source(explained)
    }
}

/// The SQL of PostgreSQL. It names the schema of each function and operator: see the docs of the statements of sessions.
#[derive(Debug)]
pub(crate) struct PostgresSql;

impl Dialect for PostgresSql {
    const QUOTE: char = '"';
    const OPERATORS: [&str; 2] = ["OPERATOR(pg_catalog.=)", "OPERATOR(pg_catalog.>)"];
    const NOW: &'static str = "pg_catalog.now()";

    fn share(&self) -> &'static str {
        "FOR SHARE SKIP LOCKED"
    }

    fn bytes(&self, bytes: &[u8]) -> String {
        // No setting of the session changes what this means.
        format!("pg_catalog.decode('{}', 'hex')", hex(bytes))
    }

    fn after(&self, time: Duration) -> String {
        let (now, seconds) = (Self::NOW, time.as_secs_f64());
        format!("{now} OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => {seconds:.6})")
    }

    fn encoded(&self, column: &str) -> String {
        format!("pg_catalog.encode({column}, 'hex')")
    }

    fn decode(selected: &[u8]) -> Option<Vec<u8>> {
        let digits = selected
            .chunks_exact(2)
            .map(|pair| std::str::from_utf8(pair).ok());
        digits
            .map(|pair| u8::from_str_radix(pair?, 16).ok())
            .collect()
    }

    fn insert(&self, table: &str, values: &str, condition: &str) -> String {
        format!(
            "INSERT INTO {table} (namespace, name, version, value) SELECT {values} WHERE {condition} ON CONFLICT DO NOTHING"
        )
    }

    fn change(&self, table: &str, locked: &str, on: &str, set: Option<&str>) -> String {
        match set {
            Some(set) => format!("UPDATE {table} AS e SET {set} FROM ({locked}) AS l WHERE {on}"),
            None => format!("DELETE FROM {table} AS e USING ({locked}) AS l WHERE {on}"),
        }
    }

    /// The lock of the row lasts until the end of the transaction. A writer of the row does not get it meanwhile, whatever
    /// the isolation level. Above `READ COMMITTED`, the statement fails if the entry was written after the snapshot.
    fn proof(&self, table: &str, row: &str, mark: &[u8]) -> Proof {
        let mark = self.bytes(mark);
        let sql = format!(
            "SELECT pg_catalog.count(*) AS held FROM (SELECT 1 FROM {table} WHERE {row} AND pg_catalog.\"position\"(value, {mark}) OPERATOR(pg_catalog.>) 0 FOR SHARE) AS entry"
        );
        Proof {
            dialect: DIALECT,
            statement: sql.clone().into(),
            sql,
            params: Vec::new(),
            fits: Some(format!(
                "SELECT CASE WHEN pg_catalog.to_regclass('{table}') IS NULL THEN 0 ELSE 1 END::pg_catalog.int8 AS held"
            )),
        }
    }
}
