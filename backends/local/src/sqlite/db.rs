//! Statements and transactions on the connection of a provider.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, SystemClock};
use rusqlite::{Connection, Params, Row};

use super::connection::Slot;
use super::retry::BusyRetry;

/// The limit for opening. Many processes may create one file at once, one after the other.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Db {
    slot: Arc<Slot>,
    statements: AtomicU64,
}

impl Db {
    /// Opens the database at `path`. Without `create`, a missing or deleted file is an error.
    pub(super) fn open(path: &Path, create: bool, clock: &dyn Clock) -> Result<Self, Error> {
        // The clock of a test may stand still.
        let retry = BusyRetry::until(&SystemClock, SystemClock.now() + OPEN_TIMEOUT);
        Ok(Self {
            slot: retry.run(|| Slot::open(path, create, clock.now()))?,
            statements: AtomicU64::new(0),
        })
    }

    /// Returns the path without links.
    pub(super) fn path(&self) -> &Path {
        &self.slot.path
    }

    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    pub(super) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Runs `work`, and retries while another process writes. Between retries, other threads may use the
    /// connection.
    pub(super) fn run<T>(
        &self,
        retry: &BusyRetry<'_>,
        mut work: impl FnMut(&Session<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        retry.run(|| {
            let done = self
                .slot
                .with(retry.clock.now(), retry.limit(), |connection| {
                    let session = Session {
                        connection,
                        statements: &self.statements,
                    };
                    let done = session
                        .roll_back_open_transaction()
                        .and_then(|()| work(&session));
                    if done.is_err() {
                        // An open transaction locks out other processes. If this fails, the next use repeats it.
                        let _ = session.roll_back_open_transaction();
                    }
                    done
                });
            Ok(done??)
        })
    }

    /// Runs `work` like [`run`](Self::run), in a transaction that holds the write lock from its start.
    /// A transaction that takes the write lock later fails if another process wrote in between.
    pub(super) fn transact<T>(
        &self,
        retry: &BusyRetry<'_>,
        mut work: impl FnMut(&Session<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.run(retry, |session| {
            session.change("BEGIN IMMEDIATE", ())?;
            let value = work(session)?;
            session.change("COMMIT", ())?;
            Ok(value)
        })
    }
}

/// The connection, while this thread uses it.
pub(super) struct Session<'a> {
    connection: &'a Connection,
    statements: &'a AtomicU64,
}

impl Session<'_> {
    pub(super) fn is_in_transaction(&self) -> bool {
        !self.connection.is_autocommit()
    }

    /// Rolls back a transaction that an error or a panic left open.
    fn roll_back_open_transaction(&self) -> rusqlite::Result<()> {
        if self.is_in_transaction() {
            self.change("ROLLBACK", ())?;
        }
        Ok(())
    }

    /// Runs a statement, and returns the number of changed rows.
    pub(super) fn change(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        self.connection.prepare_cached(sql)?.execute(params)
    }

    /// Runs a statement to its end, and returns its first row. A writing statement commits, and reports
    /// an error, only at its end.
    pub(super) fn first<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let value = rows.next()?.map(read).transpose()?;
        while rows.next()?.is_some() {}
        Ok(value)
    }

    /// Runs a statement, and returns all rows.
    pub(super) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(read(row)?);
        }
        Ok(all)
    }

    pub(super) fn last_id(&self) -> i64 {
        self.connection.last_insert_rowid()
    }
}
