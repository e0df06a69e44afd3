//! Finds or makes the table, and checks whether locks can rely on it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use lockkeeper_core::{Error, ErrorKind, Finding};
use lockkeeper_register::table::{TableName, server_findings};
use lockkeeper_remote::{Failure, nothing_granted, senseless};

use super::TextConnection;
use crate::connection::opening::numbers;
use crate::failure::incompatible;
use crate::statements::dialect::Dialect;

/// Returns the statement that makes a table.
fn migration(table: &TableName) -> String {
    format!(
        "CREATE TABLE {} (namespace VARBINARY(512) NOT NULL, name VARBINARY(544) NOT NULL, version BIGINT NOT NULL, value MEDIUMBLOB NOT NULL, ends DATETIME(6), PRIMARY KEY (namespace, name)) ENGINE=InnoDB ROW_FORMAT=DYNAMIC COMMENT='{}'",
        table.quoted('`'),
        TableName::COMMENT
    )
}

/// Lists the relevant variables. A server that lacks one leaves it out.
const VARIABLES: &str = "SHOW SESSION VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'wsrep_on', 'read_only', 'super_read_only', 'group_replication_group_name', 'group_replication_single_primary_mode', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin')";

/// Refuses a session in which a statement is not committed by itself.
pub(super) fn check_session(
    connection: &mut TextConnection,
    limit: Duration,
) -> Result<(), Failure> {
    // The first one fails in a transaction, and else changes nothing.
    let rows = rows(
        connection,
        "SET TRANSACTION READ WRITE; SELECT @@autocommit",
        limit,
    )?;
    match rows.first().and_then(|row| row.first()).map(String::as_str) {
        Some("1") => Ok(()),
        _ => Err(Failure::Refused(incompatible(
            "autocommit is off in the session, so what a lock writes would never be committed; switch it on for this user, or have the application's function give sessions with autocommit",
        ))),
    }
}

/// Runs a text, and returns the rows of all its statements; NULL is empty.
fn rows(
    connection: &mut TextConnection,
    text: &str,
    limit: Duration,
) -> Result<Vec<Vec<String>>, Failure> {
    let replies = connection.ask(text, limit)?.unwrap_or_default();
    let text =
        |value: Option<Vec<u8>>| String::from_utf8_lossy(&value.unwrap_or_default()).into_owned();
    let row = |row: Vec<_>| row.into_iter().map(text).collect();
    Ok(replies
        .into_iter()
        .flat_map(|reply| reply.rows)
        .map(row)
        .collect())
}

fn variables(
    connection: &mut TextConnection,
    limit: Duration,
) -> Result<HashMap<String, String>, Failure> {
    let pairs = rows(connection, VARIABLES, limit)?.into_iter();
    let pair = |row: Vec<String>| {
        let [name, value] = row.try_into().ok()?;
        Some((name, value))
    };
    Ok(pairs.filter_map(pair).collect())
}

/// Returns the kind of server, and the table with its database. Makes the table if it is not there.
///
/// # Errors
/// The table cannot be made, or cannot be relied on.
pub(super) fn find(
    connection: &mut TextConnection,
    wanted: &TableName,
    limit: Duration,
) -> Result<(Dialect, TableName), Error> {
    let variables = variables(connection, limit).map_err(nothing_granted)?;
    let dialect = judge(&variables)?;
    let named = match &wanted.schema {
        Some(schema) => schema.clone(),
        None => {
            let database = rows(connection, "SELECT DATABASE()", limit);
            database.map_err(nothing_granted)?.concat().concat()
        }
    };
    if named.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidValue,
            "the table of locks is in a database; name one in the URL's path, or by table=DATABASE.TABLE",
        ));
    }
    let table = TableName::parse(&format!("{named}.{}", wanted.table)).map_err(|_| {
        let text = format!("the database {named:?} has a name that is not supported; write table=DATABASE.TABLE with a database whose name is letters, digits and `_`");
        Error::new(ErrorKind::InvalidValue, text)
    })?;
    let state = format!(
        "SELECT engine, table_comment FROM information_schema.tables WHERE table_schema = '{named}' AND table_name = '{}'",
        table.table
    );
    let mut found = rows(connection, &state, limit).map_err(nothing_granted)?;
    if found.is_empty() {
        let made = rows(connection, &migration(&table), limit);
        found = rows(connection, &state, limit).map_err(nothing_granted)?;
        // Another process may have made it just now.
        if let (Err(failure), true) = (made, found.is_empty()) {
            return Err(table.not_made(&migration(&table), failure));
        }
    }
    let (engine, comment) = match found.first().map(Vec::as_slice) {
        Some([engine, comment]) => (engine.as_str(), comment.as_str()),
        _ => return Err(senseless()),
    };
    if engine != "InnoDB" {
        return Err(incompatible(&format!(
            "{table} is no table of InnoDB ({engine}), so its rows cannot be locked; name another one by `table`"
        )));
    }
    table.check_comment(comment)?;
    Ok((dialect, table))
}

/// Returns the kind of a server on which a locked row is locked for all.
fn judge(variables: &HashMap<String, String>) -> Result<Dialect, Error> {
    let value = |name: &str| variables.get(name).map_or("", String::as_str);
    let is_on = |name: &str| matches!(value(name), "ON" | "1");
    let version = value("version");
    let dialect = Dialect::of(version, value("version_comment"));
    let oldest = match dialect {
        Dialect::MySql => [8, 0, 1],
        Dialect::MariaDb => [10, 6, 0],
    };
    if numbers(version) < oldest {
        return Err(incompatible(&format!(
            "version {version} of the server has no SKIP LOCKED, so a lock would wait for transactions of the application; MySQL from 8.0.1 and MariaDB from 10.6 on have it"
        )));
    }
    let is_group = !value("group_replication_group_name").is_empty();
    if is_on("wsrep_on") || is_group && !is_on("group_replication_single_primary_mode") {
        return Err(incompatible(
            "this server is a member of a cluster in which several members take writes (Galera, or group replication with several primaries), and a row is locked on one member only; lock on a server that is not in the cluster, or in a group with a single primary",
        ));
    }
    if is_on("read_only") || is_on("super_read_only") {
        return Err(incompatible(
            "this server is read-only, so probably a replica, and locks are written; connect to the primary",
        ));
    }
    Ok(dialect)
}

/// The time in microseconds.
const TIME: &str = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

pub(super) fn examine(
    connection: &mut TextConnection,
    limit: Duration,
) -> Result<Vec<Finding>, Failure> {
    let variables = variables(connection, limit)?;
    let value = |name: &str| variables.get(name).map_or("", String::as_str);
    let before = SystemTime::now();
    let time = rows(connection, TIME, limit)?.concat().concat();
    let is_logged = value("log_bin") == "ON";
    let is_kept = value("innodb_flush_log_at_trx_commit") == "1"
        && (!is_logged || value("sync_binlog") == "1");
    let settings = "innodb_flush_log_at_trx_commit or sync_binlog is not 1";
    let dialect = Dialect::of(value("version"), value("version_comment"));
    server_findings(
        format!("{} {}", dialect.name(), value("version")),
        (before, &time),
        (!is_kept).then_some((settings, "set both to 1")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_whose_rows_cannot_be_locked_for_all_are_refused() {
        for (version, variable, value, word) in [
            ("10.5.29-MariaDB", "", "", "10.5.29"),
            ("8.0.0", "", "", "8.0.0"),
            ("10.11.1-MariaDB", "wsrep_on", "ON", "Galera"),
            (
                "9.7.4",
                "group_replication_group_name",
                "x",
                "several primaries",
            ),
            ("9.7.4", "super_read_only", "ON", "replica"),
        ] {
            let pairs = [("version", version), (variable, value)];
            let owned = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let error = judge(&owned.into()).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
    }

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
