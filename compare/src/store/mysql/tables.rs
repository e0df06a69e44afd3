//! Rows in two tables of their own, reached as applications do: by a pool of ten connections.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::FencingToken;
use mysql::prelude::{FromRow, Queryable};
use mysql::{Pool, PooledConn};

use super::Door;
use crate::error::Failure;
use crate::store::state::State;

/// Far above what a queue of single-row statements can take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The tables, which go when this is dropped.
#[derive(Debug)]
pub(crate) struct Tables {
    rows: Rows,
}

impl Tables {
    /// What HikariCP has where nobody says another number.
    pub(crate) const POOL: usize = 10;

    /// Makes them. `folder` and `number` tell them from all others.
    pub(crate) fn create(door: &Door, folder: &Path, number: usize) -> Result<Self, Failure> {
        if !door.has_database() {
            return Err(Failure::Usage(
                "the URL names no database, and the scenario's data needs one; add /NAME"
                    .to_owned(),
            ));
        }
        let salt = tempfile::Builder::new()
            .rand_bytes(12)
            .prefix("")
            .tempdir_in(folder)
            .map_err(|error| Failure::Failed(format!("no folder to take a name from: {error}")))?;
        let salt = salt.path().file_name().unwrap_or_default();
        let salt = salt.to_string_lossy().to_lowercase();
        let tables = Self {
            rows: Rows {
                pool: door.pool(Self::POOL, Self::POOL)?,
                patience: PATIENCE,
                prefix: format!("lockkeeper_compare_{salt}_{number}"),
                sent: Arc::default(),
            },
        };
        let prefix = &tables.rows.prefix;
        tables.rows.change(format!(
            "CREATE TABLE {prefix}_cells (cell INT PRIMARY KEY, value BIGINT NOT NULL, \
             token BIGINT NOT NULL DEFAULT 0, version BIGINT NOT NULL DEFAULT 0) ENGINE = InnoDB"
        ))?;
        tables.rows.change(format!(
            "CREATE TABLE {prefix}_users (user INT NOT NULL) ENGINE = InnoDB"
        ))?;
        Ok(tables)
    }

    /// What is in them.
    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }
}

impl Drop for Tables {
    fn drop(&mut self) {
        let prefix = &self.rows.prefix;
        // Where the server is gone, nothing can be done about it.
        let _ = self.rows.change(format!(
            "DROP TABLE IF EXISTS {prefix}_cells, {prefix}_users"
        ));
    }
}

/// The rows as a program sees them that has this pool.
#[derive(Clone)]
pub(crate) struct Rows {
    pool: Pool,
    patience: Duration,
    prefix: String,
    sent: Arc<AtomicU64>,
}

impl Rows {
    /// The same rows by way of another pool, which is not waited for any longer than that.
    pub(crate) fn through(&self, pool: &Pool, patience: Duration) -> Self {
        Self {
            pool: pool.clone(),
            patience,
            ..self.clone()
        }
    }

    /// The table with the numbers.
    pub(crate) fn cells(&self) -> String {
        format!("{}_cells", self.prefix)
    }

    /// The table with the users.
    pub(crate) fn users(&self) -> String {
        format!("{}_users", self.prefix)
    }

    /// How many statements were sent for this so far.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// A connection, for a statement or a transaction.
    pub(crate) fn connection(&self) -> Result<PooledConn, Failure> {
        from_pool(&self.pool, self.patience)
    }

    fn change(&self, sql: String) -> Result<bool, Failure> {
        let mut connection = self.connection()?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        connection.query_drop(sql)?;
        Ok(connection.affected_rows() > 0)
    }

    fn number<T: FromRow>(&self, sql: String) -> Result<T, Failure> {
        let mut connection = self.connection()?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        connection.query_first(sql)?.ok_or_else(|| {
            Failure::Failed("the scenario's data is gone from the database".to_owned())
        })
    }
}

/// A connection of an application's pool, or the application's error.
pub(crate) fn from_pool(pool: &Pool, patience: Duration) -> Result<PooledConn, Failure> {
    pool.try_get_conn(patience).map_err(|error| match error {
        mysql::Error::DriverError(mysql::DriverError::Timeout) => Failure::Starved(format!(
            "none of the pool's connections was free within {patience:?}"
        )),
        other => Failure::from(other),
    })
}

impl State for Rows {
    fn reset(&self, values: &[i64]) -> Result<(), Failure> {
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

    fn read(&self, cell: u32) -> Result<i64, Failure> {
        let cells = self.cells();
        self.number(format!("SELECT value FROM {cells} WHERE cell = {cell}"))
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Failure> {
        let cells = self.cells();
        self.change(format!(
            "UPDATE {cells} SET value = {value} WHERE cell = {cell}"
        ))?;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure> {
        let (cells, token) = (self.cells(), token.as_i64());
        // The version, so that a row that is matched is changed: only that is told.
        self.change(format!(
            "UPDATE {cells} SET value = {value}, token = {token}, version = version + 1 \
             WHERE cell = 0 AND token <= {token}"
        ))
    }

    fn record(&self, user: u32) -> Result<(), Failure> {
        let users = self.users();
        self.change(format!("INSERT INTO {users} (user) VALUES ({user})"))?;
        Ok(())
    }

    fn recorded(&self) -> Result<i64, Failure> {
        let users = self.users();
        self.number(format!("SELECT COUNT(*) FROM {users}"))
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
