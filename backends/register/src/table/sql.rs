//! The statements. Names and values of users are hexadecimal in them, and the table's name is plain.
//!
//! They are texts, and no prepared statements, since a pooler may run each in another session. Operators and functions
//! are those of the dialect, which names their schema where another user's could come before.

use std::fmt::Write as _;
use std::time::Duration;

use lockkeeper_core::Proof;

use crate::store::Version;
use crate::table::name::TableName;

/// What the SQL of a server looks like.
pub trait Dialect: std::fmt::Debug + Send + Sync + 'static {
    /// The quotation mark of names.
    const QUOTE: char;
    /// The operators `=` and `>`.
    const OPERATORS: [&str; 2];
    /// The time when the statement or its transaction began.
    const NOW: &'static str;

    /// Returns what locks a selected row against writers, and skips it if a writer has locked it.
    fn share(&self) -> &'static str;

    /// Returns a literal of bytes.
    fn bytes(&self, bytes: &[u8]) -> String;

    /// Returns the time that is this long after [`NOW`](Self::NOW).
    fn after(&self, time: Duration) -> String;

    /// Returns the expression by which bytes of a column are selected.
    fn encoded(&self, column: &str) -> String;

    /// Returns the bytes that [`encoded`](Self::encoded) has selected.
    fn decode(selected: &[u8]) -> Option<Vec<u8>>;

    /// Returns the statement that inserts a row of these values under a condition, if there is none.
    fn insert(&self, table: &str, values: &str, condition: &str) -> String;

    /// Returns the statement that updates or, without `set`, deletes the row `e` of the table that `locked` has selected
    /// as `l`. `on` says which row that is.
    fn change(&self, table: &str, locked: &str, on: &str, set: Option<&str>) -> String;

    /// Returns the proof that the row with a condition is there, and stays so until the transaction ends.
    fn proof(&self, table: &str, names: &str, mark: &[u8]) -> Proof;
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    let mut digits = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing into a string does not fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

/// A write of an entry's row.
#[derive(Clone, Debug)]
pub(super) struct RowWrite<'a> {
    /// The name of the row.
    pub(super) name: &'a str,
    /// The version that the row still has; `None` if there is no row.
    pub(super) seen: Option<Version>,
    /// The name of the row of a session that has not ended.
    pub(super) session: Option<String>,
    /// The name of another row, and the version that it still has.
    pub(super) also: Option<(&'a str, Version)>,
    /// The new version.
    pub(super) version: Version,
    /// The new value; `None` removes the row.
    pub(super) value: Option<&'a str>,
}

/// The statements about one namespace in one table.
#[derive(Debug)]
pub(super) struct TableSql<D> {
    dialect: D,
    /// The table, in quotation marks.
    table: String,
    /// The namespace, as a literal.
    namespace: String,
}

impl<D: Dialect> TableSql<D> {
    /// Makes the statements about a namespace.
    pub(super) fn new(dialect: D, table: &TableName, namespace: &str) -> Self {
        Self {
            namespace: dialect.bytes(namespace.as_bytes()),
            table: table.quoted(D::QUOTE),
            dialect,
        }
    }

    /// Returns the condition for the row with a name.
    fn is_row(&self, name: &str) -> String {
        let [eq, _] = D::OPERATORS;
        let (namespace, name) = (&self.namespace, self.dialect.bytes(name.as_bytes()));
        format!("namespace {eq} {namespace} AND name {eq} {name}")
    }

    fn is_alive() -> String {
        let [_, gt] = D::OPERATORS;
        format!("ends {gt} {}", D::NOW)
    }

    /// By the `sql_mode` of a MySQL server, a NOT without parentheses may be that of the column.
    fn has_ended() -> String {
        format!("NOT ({})", Self::is_alive())
    }

    /// Keeps a session that has not ended.
    pub(super) fn keep(&self, row: &str, ttl: Duration) -> String {
        let (table, ends, alive) = (&self.table, self.dialect.after(ttl), Self::is_alive());
        format!(
            "UPDATE {table} SET ends = {ends} WHERE {} AND {alive}",
            self.is_row(row)
        )
    }

    /// Selects the rows with these names.
    pub(super) fn select(&self, names: &[String]) -> String {
        let rows: Vec<_> = names.iter().map(|name| self.is_row(name)).collect();
        self.select_where(&rows.join(" OR "))
    }

    /// Selects the first entries behind a name, in the order of the names.
    pub(super) fn list(&self, after: &[u8], limit: usize) -> String {
        let ([eq, gt], after) = (D::OPERATORS, self.dialect.bytes(after));
        let namespace = &self.namespace;
        self.select_where(&format!(
            "namespace {eq} {namespace} AND name {gt} {after} AND ends IS NULL ORDER BY name LIMIT {limit}"
        ))
    }

    fn select_where(&self, condition: &str) -> String {
        let [name, value] = ["name", "value"].map(|column| self.dialect.encoded(column));
        let (table, alive) = (&self.table, Self::is_alive());
        format!(
            "SELECT {name}, version, {value}, CASE WHEN ends IS NULL THEN NULL WHEN {alive} THEN 1 ELSE 0 END FROM {table} WHERE {condition}"
        )
    }

    /// Deletes a session that has ended.
    pub(super) fn expire(&self, row: &str) -> String {
        format!("{} AND {}", self.end(row), Self::has_ended())
    }

    /// Deletes a session.
    pub(super) fn end(&self, row: &str) -> String {
        format!("DELETE FROM {} WHERE {}", self.table, self.is_row(row))
    }

    /// Selects some of the namespace's sessions that have ended. No other kind of name comes after those of sessions.
    pub(super) fn expired(&self) -> String {
        let ([eq, gt], first) = (D::OPERATORS, self.dialect.bytes(b"session/"));
        let (namespace, ended) = (&self.namespace, Self::has_ended());
        self.select_where(&format!(
            "namespace {eq} {namespace} AND name {gt} {first} AND {ended} LIMIT 100"
        ))
    }

    /// Inserts a session.
    pub(super) fn open(&self, row: &str, ttl: Duration) -> String {
        let (namespace, name) = (&self.namespace, self.dialect.bytes(row.as_bytes()));
        let (empty, ends) = (self.dialect.bytes(b""), self.dialect.after(ttl));
        format!(
            "INSERT INTO {} (namespace, name, version, value, ends) VALUES ({namespace}, {name}, 0, {empty}, {ends})",
            self.table
        )
    }

    /// Writes an entry under its conditions.
    pub(super) fn write(&self, write: &RowWrite<'_>) -> String {
        let (table, version, [eq, _]) = (&self.table, write.version, D::OPERATORS);
        let session = write.session.as_ref().map(|session| {
            let row = format!("{} AND {}", self.is_row(session), Self::is_alive());
            format!("EXISTS (SELECT 1 FROM {table} WHERE {row})")
        });
        let also = write.also.map(|(name, version)| {
            let row = format!("{} AND version {eq} {version}", self.is_row(name));
            format!(
                "EXISTS (SELECT 1 FROM {table} WHERE {row} {})",
                self.dialect.share()
            )
        });
        let value = write
            .value
            .map(|value| self.dialect.bytes(value.as_bytes()));
        let conditions = session.into_iter().chain(also);
        let Some(seen) = write.seen else {
            // What is not there cannot be removed.
            let is_new = value.as_ref().map_or("1 IS NULL", |_| "1 IS NOT NULL");
            let conditions: Vec<_> = conditions.chain([is_new.to_owned()]).collect();
            let name = self.dialect.bytes(write.name.as_bytes());
            let value = value.unwrap_or_else(|| self.dialect.bytes(b""));
            let values = format!("{}, {name}, {version}, {value}", self.namespace);
            return self
                .dialect
                .insert(table, &values, &conditions.join(" AND "));
        };
        let is_seen = [self.is_row(write.name), format!("version {eq} {seen}")];
        let conditions: Vec<_> = is_seen.into_iter().chain(conditions).collect();
        // With a limit, the server selects first, and locks nothing else.
        let locked = format!(
            "SELECT namespace, name FROM {table} WHERE {} LIMIT 1 FOR UPDATE SKIP LOCKED",
            conditions.join(" AND ")
        );
        let on = format!("e.namespace {eq} l.namespace AND e.name {eq} l.name");
        let set = value.map(|value| format!("version = {version}, value = {value}"));
        self.dialect.change(table, &locked, &on, set.as_deref())
    }

    /// Returns the proof of a lease: its mark is a part of the entry's value.
    pub(super) fn proof(&self, name: &str, mark: &str) -> Proof {
        self.dialect
            .proof(&self.table, &self.is_row(name), mark.as_bytes())
    }
}
