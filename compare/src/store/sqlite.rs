//! The state of `sqlite:`: rows in a file of its own, beside the file with the locks.

use std::path::Path;
use std::time::Duration;

use lockkeeper::FencingToken;
use rusqlite::Connection;

use super::round_robin::RoundRobin;
use super::state::State;
use crate::error::Error;

/// Far longer than a queue of single-row writes can take.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// Rows of a throw-away database.
pub(crate) struct Rows(RoundRobin<Connection>);

impl Rows {
    /// Creates the file and its tables.
    pub(crate) fn create(file: &Path) -> Result<Self, Error> {
        let connect = || {
            let connection = Connection::open(file)?;
            connection.busy_timeout(BUSY_TIMEOUT)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            // The file is thrown away, so it need not survive a power failure.
            connection.pragma_update(None, "synchronous", "OFF")?;
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS cells (
                   cell INTEGER PRIMARY KEY, value INTEGER NOT NULL,
                   token INTEGER NOT NULL DEFAULT 0, version INTEGER NOT NULL DEFAULT 0);
                 CREATE TABLE IF NOT EXISTS users (user INTEGER NOT NULL);",
            )?;
            Ok(connection)
        };
        Ok(Self(RoundRobin::new(connect)?))
    }

    /// Runs a statement or a transaction.
    pub(crate) fn with<T>(
        &self,
        statement: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.0.with(|connection| statement(connection))
    }

    fn number(&self, sql: &str, values: impl rusqlite::Params) -> Result<i64, Error> {
        self.with(|c| c.prepare_cached(sql)?.query_row(values, |row| row.get(0)))
    }

    fn change(&self, sql: &str, values: impl rusqlite::Params) -> Result<bool, Error> {
        let changed = self.with(|c| c.prepare_cached(sql)?.execute(values))?;
        Ok(changed > 0)
    }
}

impl State for Rows {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        self.change("DELETE FROM cells", [])?;
        self.change("DELETE FROM users", [])?;
        let insert = "INSERT INTO cells (cell, value) VALUES (?1, ?2)";
        for (cell, value) in (0_u32..).zip(values) {
            self.change(insert, (cell, value))?;
        }
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        self.number("SELECT value FROM cells WHERE cell = ?1", [cell])
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        self.change("UPDATE cells SET value = ?2 WHERE cell = ?1", (cell, value))?;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        self.change(
            "UPDATE cells SET value = ?1, token = ?2 WHERE cell = 0 AND token <= ?2",
            (value, token.as_i64()),
        )
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        self.change("INSERT INTO users (user) VALUES (?1)", [user])?;
        Ok(())
    }

    fn recorded(&self) -> Result<i64, Error> {
        self.number("SELECT COUNT(*) FROM users", [])
    }
}
