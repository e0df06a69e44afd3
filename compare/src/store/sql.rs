//! The state of `sqlite:`, `mysql:` and `postgres:`: rows in two tables, behind a connection pool as in an
//! application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{FencingToken, Usage};

use super::cells::{Cell, Cells};
use super::pool::{POOL_TIMEOUT, Pool, Pooled};
use super::state::State;
use crate::error::Error;

/// A connection to a database. All values are numbers, so statements are plain texts.
pub(crate) trait SqlConnection: Send + Sized + 'static {
    /// The statement that begins a transaction that writes.
    const BEGIN: &'static str;
    /// What follows the columns in `CREATE TABLE`.
    const TABLE_OPTIONS: &'static str;

    /// Runs a statement, and returns whether it changed a row.
    fn change(&mut self, sql: &str) -> Result<bool, Error>;

    /// Runs a query, and returns the two numbers of its first row.
    fn pair(&mut self, sql: &str) -> Result<(i64, i64), Error>;
}

/// Returns the name of the table of locks, which the strategies that have rows as locks create.
pub(crate) fn locks(prefix: &str) -> String {
    format!("{prefix}_locks")
}

/// The rows, as a program with this pool sees them.
pub(crate) struct Rows<C: SqlConnection> {
    pool: Arc<Pool<C>>,
    timeout: Duration,
    prefix: String,
    sent: Arc<AtomicU64>,
}

impl<C: SqlConnection> Rows<C> {
    /// Returns the rows of tables with names that begin with `prefix`.
    pub(crate) fn new(pool: Pool<C>, prefix: &str) -> Self {
        Self {
            pool: Arc::new(pool),
            timeout: POOL_TIMEOUT,
            prefix: prefix.to_owned(),
            sent: Arc::default(),
        }
    }

    pub(crate) fn create(&self) -> Result<(), Error> {
        let (cells, users, options) = (self.cells(), self.users(), C::TABLE_OPTIONS);
        self.change(&format!(
            "CREATE TABLE {cells} (cell INTEGER PRIMARY KEY, value BIGINT NOT NULL, \
             token BIGINT NOT NULL DEFAULT 0, version BIGINT NOT NULL DEFAULT 0) {options}"
        ))?;
        self.change(&format!(
            "CREATE TABLE {users} (user_id INTEGER NOT NULL) {options}"
        ))?;
        Ok(())
    }

    pub(crate) fn remove(&self) -> Result<(), Error> {
        for table in [self.cells(), self.users(), locks(&self.prefix)] {
            self.change(&format!("DROP TABLE IF EXISTS {table}"))?;
        }
        Ok(())
    }

    /// Returns the same rows through another pool; a connection is waited for until `timeout`.
    pub(crate) fn through(&self, pool: &Arc<Pool<C>>, timeout: Duration) -> Self {
        Self {
            pool: Arc::clone(pool),
            timeout,
            prefix: self.prefix.clone(),
            sent: Arc::clone(&self.sent),
        }
    }

    pub(crate) fn cells(&self) -> String {
        format!("{}_cells", self.prefix)
    }

    pub(crate) fn users(&self) -> String {
        format!("{}_users", self.prefix)
    }

    /// Returns how many statements were sent for these rows so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Takes a connection from the pool, for a statement or a transaction.
    pub(crate) fn connection(&self) -> Result<Pooled<C>, Error> {
        self.pool.get(self.timeout)
    }

    /// Runs one statement, and counts it.
    pub(crate) fn with_connection<T>(
        &self,
        run: impl FnOnce(&mut C) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut connection = self.connection()?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        run(&mut connection)
    }

    /// Runs a statement, and returns whether it changed a row.
    pub(crate) fn change(&self, sql: &str) -> Result<bool, Error> {
        self.with_connection(|connection| connection.change(sql))
    }

    fn number(&self, sql: &str) -> Result<i64, Error> {
        Ok(self.with_connection(|connection| connection.pair(sql))?.0)
    }

    /// Returns what the rows have cost so far.
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            commands: self.sent(),
            connections: self.pool.open_connections(),
        }
    }
}

/// The version beside each value is its revision. These statements are counted by the strategy.
impl<C: SqlConnection> Cells for Rows<C> {
    fn read_cells(&self, cells: &[u32]) -> Result<Vec<Cell>, Error> {
        let (mut connection, table) = (self.connection()?, self.cells());
        let read = |cell| {
            let sql = format!("SELECT value, version FROM {table} WHERE cell = {cell}");
            let (value, revision) = connection.pair(&sql)?;
            Ok(Cell { value, revision })
        };
        cells.iter().map(read).collect()
    }

    fn write_cells(&self, cells: &[(u32, Cell, i64)], user: u32) -> Result<(bool, u64), Error> {
        let (table, users) = (self.cells(), self.users());
        let updates = cells.iter().map(|(cell, read, value)| {
            let version = read.revision;
            format!(
                "UPDATE {table} SET value = {value}, version = version + 1 \
                 WHERE cell = {cell} AND version = {version}"
            )
        });
        let insert = format!("INSERT INTO {users} (user_id) VALUES ({user})");

        let mut connection = self.connection()?;
        connection.change(C::BEGIN)?;
        // With those that begin and end the transaction.
        let mut statements = 2;
        let refused = updates
            .chain([insert])
            .map(|statement| {
                statements += 1;
                connection.change(&statement)
            })
            .find(|changed| !matches!(changed, Ok(true)));
        let (end, written) = match refused {
            None => ("COMMIT", Ok(true)),
            Some(changed) => ("ROLLBACK", changed),
        };
        let ended = connection.change(end);
        let written = written?;
        ended?;
        Ok((written, statements))
    }
}

impl<C: SqlConnection> State for Rows<C> {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        let (cells, users) = (self.cells(), self.users());
        self.change(&format!("DELETE FROM {cells}"))?;
        self.change(&format!("DELETE FROM {users}"))?;
        for (cell, value) in values.iter().enumerate() {
            self.change(&format!(
                "INSERT INTO {cells} (cell, value) VALUES ({cell}, {value})"
            ))?;
        }
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        let cells = self.cells();
        self.number(&format!(
            "SELECT value, version FROM {cells} WHERE cell = {cell}"
        ))
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        let cells = self.cells();
        self.change(&format!(
            "UPDATE {cells} SET value = {value} WHERE cell = {cell}"
        ))?;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        let (cells, token) = (self.cells(), token.as_i64());
        // MySQL reports only rows that changed, so the version makes each matched row change.
        self.change(&format!(
            "UPDATE {cells} SET value = {value}, token = {token}, version = version + 1 \
             WHERE cell = 0 AND token <= {token}"
        ))
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        let users = self.users();
        self.change(&format!("INSERT INTO {users} (user_id) VALUES ({user})"))?;
        Ok(())
    }

    fn recorded(&self) -> Result<i64, Error> {
        let users = self.users();
        self.number(&format!("SELECT COUNT(*), 0 FROM {users}"))
    }
}
