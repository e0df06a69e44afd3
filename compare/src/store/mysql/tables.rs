//! The state of `mysql:`: rows in two tables, reached by a pool of ten connections as in an
//! application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::FencingToken;
use mysql::prelude::{FromRow, Queryable};
use mysql::{Pool, PooledConn};

use super::client::{MySqlConfig, from_pool};
use crate::error::Error;
use crate::store::state::State;

/// Far longer than a queue of single-row statements can take.
const POOL_TIMEOUT: Duration = Duration::from_secs(60);

/// The tables of one run. Dropping them removes them from the database.
pub(crate) struct Tables {
    rows: Rows,
}

impl Tables {
    /// The size of an application's pool, as HikariCP has it by default.
    pub(crate) const POOL: usize = 10;

    /// Creates the tables, whose names begin with `prefix`.
    pub(crate) fn create(config: &MySqlConfig, prefix: &str) -> Result<Self, Error> {
        if !config.has_database() {
            return Err(Error::invalid(
                "the URL names no database, and the scenario's data needs one; add /NAME",
            ));
        }
        let tables = Self {
            rows: Rows {
                pool: config.pool(Self::POOL, Self::POOL)?,
                timeout: POOL_TIMEOUT,
                prefix: prefix.to_owned(),
                sent: Arc::default(),
            },
        };
        tables.rows.change(format!(
            "CREATE TABLE {prefix}_cells (cell INT PRIMARY KEY, value BIGINT NOT NULL, \
             token BIGINT NOT NULL DEFAULT 0, version BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB"
        ))?;
        tables.rows.change(format!(
            "CREATE TABLE {prefix}_users (user INT NOT NULL) ENGINE = InnoDB"
        ))?;
        Ok(tables)
    }

    /// Returns the rows of the tables.
    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let prefix = &self.rows.prefix;
        // If the server is out of reach, the tables stay.
        let _ = self.rows.change(format!(
            "DROP TABLE IF EXISTS {prefix}_cells, {prefix}_users"
        ));
    }
}

/// The rows, as a program with this pool sees them.
#[derive(Clone)]
pub(crate) struct Rows {
    pool: Pool,
    timeout: Duration,
    prefix: String,
    sent: Arc<AtomicU64>,
}

impl Rows {
    /// Returns the same rows through another pool; a connection is waited for until `timeout`.
    pub(crate) fn through(&self, pool: &Pool, timeout: Duration) -> Self {
        Self {
            pool: pool.clone(),
            timeout,
            ..self.clone()
        }
    }

    /// Returns the name of the table with the numbers.
    pub(crate) fn cells(&self) -> String {
        format!("{}_cells", self.prefix)
    }

    /// Returns the name of the table with the users.
    pub(crate) fn users(&self) -> String {
        format!("{}_users", self.prefix)
    }

    /// Returns how many statements were sent for these rows so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Takes a connection from the pool, for a statement or a transaction.
    pub(crate) fn connection(&self) -> Result<PooledConn, Error> {
        from_pool(&self.pool, self.timeout)
    }

    fn change(&self, sql: String) -> Result<bool, Error> {
        let mut connection = self.connection()?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        connection.query_drop(sql)?;
        Ok(connection.affected_rows() > 0)
    }

    fn number<T: FromRow>(&self, sql: String) -> Result<T, Error> {
        let mut connection = self.connection()?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        connection.query_first(sql)?.ok_or_else(row_is_missing)
    }
}

/// Describes that a row of the scenario's data was not found.
pub(crate) fn row_is_missing() -> Error {
    Error::failed(
        "the scenario's data is gone from the database; did another program drop its tables?",
    )
}

impl State for Rows {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        let (cells, users) = (self.cells(), self.users());
        self.change(format!("DELETE FROM {cells}"))?;
        self.change(format!("DELETE FROM {users}"))?;
        for (cell, value) in values.iter().enumerate() {
            self.change(format!(
                "INSERT INTO {cells} (cell, value) VALUES ({cell}, {value})"
            ))?;
        }
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        let cells = self.cells();
        self.number(format!("SELECT value FROM {cells} WHERE cell = {cell}"))
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        let cells = self.cells();
        self.change(format!(
            "UPDATE {cells} SET value = {value} WHERE cell = {cell}"
        ))?;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        let (cells, token) = (self.cells(), token.as_i64());
        // MySQL reports only rows that changed, so the version makes each matched row change.
        self.change(format!(
            "UPDATE {cells} SET value = {value}, token = {token}, version = version + 1 \
             WHERE cell = 0 AND token <= {token}"
        ))
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        let users = self.users();
        self.change(format!("INSERT INTO {users} (user) VALUES ({user})"))?;
        Ok(())
    }

    fn recorded(&self) -> Result<i64, Error> {
        let users = self.users();
        self.number(format!("SELECT COUNT(*) FROM {users}"))
    }
}
