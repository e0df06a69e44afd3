//! The state of `sqlite:`: rows in a file of its own, beside the file with the locks.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::FencingToken;
use rusqlite::Connection;

use super::state::State;
use crate::error::Failure;

/// A connection for each of 10,000 threads would be too many open files, and one for all would
/// have SQLite never see two writers.
const CONNECTIONS: usize = 4;
/// Far above what a queue of single-row writes can take.
const BUSY: Duration = Duration::from_secs(60);

/// Rows, reached over a few connections that the threads take in turn, for a statement at a time.
pub(crate) struct Rows {
    connections: Vec<Mutex<Connection>>,
    turn: AtomicUsize,
}

impl Rows {
    /// Makes the file.
    pub(crate) fn create(file: &Path) -> Result<Self, Failure> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            // The file is thrown away: it need not survive a power cut.
            connection.pragma_update(None, "synchronous", "OFF")?;
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS cells (
                   cell INTEGER PRIMARY KEY, value INTEGER NOT NULL,
                   token INTEGER NOT NULL DEFAULT 0, version INTEGER NOT NULL DEFAULT 0);
                 CREATE TABLE IF NOT EXISTS users (user INTEGER NOT NULL);",
            )?;
            connections.push(Mutex::new(connection));
        }
        Ok(Self {
            connections,
            turn: AtomicUsize::new(0),
        })
    }

    /// Runs one statement, or one transaction, on the connection whose turn it is.
    pub(crate) fn with<T>(
        &self,
        statement: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % CONNECTIONS;
        let connection = self
            .connections
            .get(turn)
            .ok_or_else(|| Failure::Failed("there is no connection to the state".to_owned()))?;
        let connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(statement(&connection)?)
    }

    fn number(&self, sql: &str, values: impl rusqlite::Params) -> Result<i64, Failure> {
        self.with(|c| c.prepare_cached(sql)?.query_row(values, |row| row.get(0)))
    }

    fn change(&self, sql: &str, values: impl rusqlite::Params) -> Result<bool, Failure> {
        let changed = self.with(|c| c.prepare_cached(sql)?.execute(values))?;
        Ok(changed > 0)
    }
}

impl State for Rows {
    fn reset(&self, values: &[i64]) -> Result<(), Failure> {
        self.change("DELETE FROM cells", [])?;
        self.change("DELETE FROM users", [])?;
        for (cell, value) in (0_u32..).zip(values) {
            self.change(
                "INSERT INTO cells (cell, value) VALUES (?1, ?2)",
                (cell, value),
            )?;
        }
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Failure> {
        self.number("SELECT value FROM cells WHERE cell = ?1", [cell])
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Failure> {
        self.change("UPDATE cells SET value = ?2 WHERE cell = ?1", (cell, value))?;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure> {
        self.change(
            "UPDATE cells SET value = ?1, token = ?2 WHERE cell = 0 AND token <= ?2",
            (value, token.as_i64()),
        )
    }

    fn record(&self, user: u32) -> Result<(), Failure> {
        self.change("INSERT INTO users (user) VALUES (?1)", [user])?;
        Ok(())
    }

    fn recorded(&self) -> Result<i64, Failure> {
        self.number("SELECT COUNT(*) FROM users", [])
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").finish_non_exhaustive()
    }
}
