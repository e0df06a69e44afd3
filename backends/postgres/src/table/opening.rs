//! Finds or makes the table, and checks whether locks can rely on it.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use lockkeeper_core::{Error, ErrorKind, Finding};
use lockkeeper_register::table::{TableConnection as _, TableName, server_findings};
use lockkeeper_remote::{Failure, nothing_granted, senseless};

use super::PlainConnection;
use crate::failure::incompatible;

/// Returns the statements that make a table.
fn migration(table: &TableName) -> String {
    let (name, comment) = (table.quoted('"'), TableName::COMMENT);
    format!(
        "CREATE TABLE {name} (namespace bytea NOT NULL, name bytea NOT NULL, version bigint NOT NULL, value bytea NOT NULL, ends timestamptz, PRIMARY KEY (namespace, name)); COMMENT ON TABLE {name} IS '{comment}'"
    )
}

/// Asks for what [`State::read`] reads, about a table whose name is in `{}`.
const STATE: &str = "SELECT \
    CASE WHEN pg_catalog.pg_is_in_recovery() THEN 1 ELSE 0 END, \
    pg_catalog.current_schema(), n.nspname, \
    CASE WHEN t.relkind::pg_catalog.text OPERATOR(pg_catalog.=) 'r' AND t.relpersistence::pg_catalog.text OPERATOR(pg_catalog.=) 'p' THEN 1 ELSE 0 END, \
    pg_catalog.obj_description(t.oid, 'pg_class'), \
    pg_catalog.pg_get_userbyid(t.relowner), \
    CASE WHEN o.rolsuper OR pg_catalog.current_setting('is_superuser') OPERATOR(pg_catalog.=) 'off' \
    AND (pg_catalog.pg_has_role(t.relowner, 'MEMBER') OR t.relowner OPERATOR(pg_catalog.=) d.datdba) THEN 1 ELSE 0 END, \
    CASE WHEN t.relowner OPERATOR(pg_catalog.=) n.nspowner THEN 1 ELSE 0 END, \
    CASE WHEN EXISTS (SELECT 1 FROM pg_catalog.aclexplode(t.relacl) AS a WHERE a.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid AND a.privilege_type OPERATOR(pg_catalog.<>) 'SELECT') THEN 1 ELSE 0 END \
    FROM pg_catalog.pg_database AS d \
    LEFT JOIN pg_catalog.pg_class AS t ON t.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('{}')::pg_catalog.oid \
    LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) t.relnamespace \
    LEFT JOIN pg_catalog.pg_roles AS o ON o.oid OPERATOR(pg_catalog.=) t.relowner \
    WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()";

/// The columns of [`STATE`].
struct State(Vec<Option<String>>);

impl State {
    fn ask(
        connection: &mut PlainConnection,
        name: &TableName,
        limit: Duration,
    ) -> Result<Self, Failure> {
        let sql = STATE.replace("{}", &name.quoted('"'));
        let rows = one(connection, sql, limit)?;
        match rows.len() {
            9 => Ok(Self(rows)),
            _ => Err(Failure::Refused(senseless())),
        }
    }

    fn text(&self, at: usize) -> Option<&str> {
        self.0.get(at)?.as_deref()
    }

    fn is(&self, at: usize) -> bool {
        self.text(at) == Some("1")
    }
}

/// Runs a statement and returns its first row, as texts.
fn one(
    connection: &mut PlainConnection,
    sql: String,
    limit: Duration,
) -> Result<Vec<Option<String>>, Failure> {
    let replies = connection.run(&[sql], false, limit)?;
    let row = replies
        .into_iter()
        .flatten()
        .flat_map(|reply| reply.rows)
        .next();
    let text = |value: Option<Vec<u8>>| Some(String::from_utf8_lossy(&value?).into_owned());
    let row = row.ok_or_else(|| Failure::Refused(senseless()))?;
    Ok(row.into_iter().map(text).collect())
}

/// Returns the table with its schema. Makes it if it is not there.
///
/// # Errors
/// The table cannot be made, or cannot be relied on.
pub(super) fn find(
    connection: &mut PlainConnection,
    wanted: &TableName,
    limit: Duration,
) -> Result<TableName, Error> {
    let mut state = State::ask(connection, wanted, limit).map_err(nothing_granted)?;
    if state.is(0) {
        return Err(incompatible(
            "this server is a replica, which takes no writes, and locks are written; connect to the primary",
        ));
    }
    let Some(schema) = state.text(2).or(wanted.schema.as_deref()).or(state.text(1)) else {
        return Err(Error::new(
            ErrorKind::InvalidValue,
            "the user's search_path names no schema that exists; name one by table=SCHEMA.TABLE",
        ));
    };
    let table = TableName {
        schema: Some(schema.to_owned()),
        table: wanted.table.clone(),
    };
    let began = Instant::now();
    while state.text(2).is_none() {
        let made = connection.make(&migration(&table), limit);
        state = State::ask(connection, &table, limit).map_err(nothing_granted)?;
        match made {
            _ if state.text(2).is_some() => break,
            // Another process is making it: on a busy server, its name can be taken before it is seen here.
            Ok(false) if began.elapsed() < limit => thread::sleep(Duration::from_millis(10)),
            Ok(_) => {
                return Err(incompatible(format!(
                    "the table {table} cannot be made: something else has its name, such as a type; name another one by `table`"
                )));
            }
            Err(failure) => return Err(table.not_made(&migration(&table), failure)),
        }
    }
    check(&state, wanted, &table).map(|()| table)
}

/// Refuses a table on which locks would break.
fn check(state: &State, wanted: &TableName, table: &TableName) -> Result<(), Error> {
    if !state.is(3) {
        return Err(incompatible(format!(
            "{table} is no ordinary table that survives a crash (a view, UNLOGGED, TEMPORARY, partitioned or foreign); name another one by `table`"
        )));
    }
    table.check_comment(state.text(4).unwrap_or("none"))?;
    let owner = state.text(5).unwrap_or_default();
    let denied = |text| Err(Error::new(ErrorKind::PermissionDenied, text));
    let is_trusted = state.is(6) || state.is(7) && wanted.schema.is_some();
    if !is_trusted {
        return denied(format!(
            "the table {table} belongs to {owner}, whose triggers would run with the rights of this user: {owner} is neither this user nor the owner of the database, or this user is a superuser; use a user without these rights, let this user own the table, or name it with its schema if that belongs to the same user: table={table}"
        ));
    }
    if state.is(8) {
        return denied(format!(
            "every user may write the table {table}, and so take or end locks; REVOKE ALL ON it FROM PUBLIC"
        ));
    }
    Ok(())
}

/// The time in microseconds, whether a crash keeps what was committed, and the version.
const EXAMINE: &str = "SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, \
    pg_catalog.current_setting('synchronous_commit'), pg_catalog.current_setting('fsync'), pg_catalog.current_setting('server_version')";

pub(super) fn examine(
    connection: &mut PlainConnection,
    limit: Duration,
) -> Result<Vec<Finding>, Failure> {
    let before = SystemTime::now();
    let row = one(connection, EXAMINE.to_owned(), limit)?;
    let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
    let forgets = [text(1), text(2)].contains(&"off");
    let settings = "synchronous_commit or fsync is off";
    let advice = "set both to on, synchronous_commit also for this user and database";
    server_findings(
        format!("PostgreSQL {}", text(3)),
        (before, text(0)),
        forgets.then_some((settings, advice)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migration_is_told_in_the_manual_and_in_the_docs() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let table = TableName::parse(TableName::DEFAULT).unwrap();
        for file in [
            "cli/src/args/doctor_details.txt",
            "docs/stores/sql-tables.md",
        ] {
            let text = std::fs::read_to_string(root.join(file)).unwrap();
            assert!(text.contains(&migration(&table)), "{file}");
        }
    }
}
