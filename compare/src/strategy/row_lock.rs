//! `SELECT … FOR UPDATE` as a lock: a row for each name, in a table of locks. A lock is held until its transaction
//! ends, so a thread keeps a connection with an open transaction as long as it holds or waits.
//!
//! The transaction is the session's, so a thread that holds a lock gets it again at once. All rows are free at the
//! commit, which comes with the last release.

use std::time::Duration;

use lockkeeper::backends::postgres::{PlainClient, PlainError};

use super::session_lock::{LockServer, LockSession};
use crate::error::Error;
use crate::store::postgres::{PostgresConfig, TIMEOUT};

/// The shortest `lock_timeout`, since 0 means none.
const ONE_ATTEMPT: Duration = Duration::from_millis(1);

/// A table with a row for each lock.
#[derive(Clone)]
pub(super) struct LockTable {
    config: PostgresConfig,
    table: String,
}

impl LockTable {
    /// Creates the table, unless another program of the run has done so.
    pub(super) fn create(config: &PostgresConfig, table: String) -> Result<Self, Error> {
        let sql = format!("CREATE TABLE IF NOT EXISTS {table} (name VARCHAR(200) PRIMARY KEY)");
        config.connect()?.run(&sql, TIMEOUT)?;
        let config = config.clone();
        Ok(Self { config, table })
    }
}

impl LockServer for LockTable {
    type Session = RowSession;

    fn open_session(&self) -> Result<RowSession, Error> {
        Ok(RowSession {
            client: self.config.connect()?,
            table: self.table.clone(),
            depth: 0,
        })
    }

    fn end(&self, sessions: &[u32]) -> Result<(), Error> {
        self.config.end(sessions)
    }
}

/// A session, with a transaction while it holds a lock.
pub(super) struct RowSession {
    client: PlainClient,
    table: String,
    /// How many locks it holds, one that was acquired twice as two.
    depth: u32,
}

impl RowSession {
    /// Locks the row of a name, which is there or is made: another session sees neither before the commit.
    fn lock_row(&mut self, name: &str, wait: Duration) -> Result<(), PlainError> {
        let table = &self.table;
        let begin = match self.depth {
            0 => "BEGIN;",
            _ => "",
        };
        let limit = wait.max(ONE_ATTEMPT).as_millis();
        let select = format!("SELECT 1 FROM {table} WHERE name = '{name}' FOR UPDATE");
        let first = format!("{begin} SET LOCAL lock_timeout = {limit}; {select}");
        let mut locked = self.client.run(&first, wait + TIMEOUT)?;
        while locked.rows.is_empty() {
            let insert = format!("INSERT INTO {table} VALUES ('{name}') ON CONFLICT DO NOTHING");
            if self.client.run(&insert, wait + TIMEOUT)?.count > 0 {
                break;
            }
            locked = self.client.run(&select, wait + TIMEOUT)?;
        }
        Ok(())
    }
}

impl LockSession for RowSession {
    fn id(&self) -> u32 {
        self.client.id()
    }

    /// If the row is not free in time, the transaction is over, and with it all locks of the session.
    fn lock(&mut self, name: &str, wait: Duration) -> Result<bool, Error> {
        match self.lock_row(name, wait) {
            Ok(()) => {
                self.depth += 1;
                Ok(true)
            }
            Err(PlainError::LockTimeout) => {
                self.depth = 0;
                self.client.run("ROLLBACK", TIMEOUT)?;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn unlock(&mut self, _name: &str) -> Result<(), Error> {
        if self.depth == 1 {
            self.client.run("COMMIT", TIMEOUT)?;
        }
        self.depth = self.depth.saturating_sub(1);
        Ok(())
    }
}
