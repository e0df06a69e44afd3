//! A table of locks as many write-ups have it: `INSERT` acquires, since the name is the primary key, and `DELETE`
//! releases. A waiting thread tries again every 100 ms.
//!
//! It needs a connection of the application's pool for one statement at a time. Nothing says how long a row is to stay, so
//! the lock of a program that has died stays forever. The lock goes to the waiter that happens to try next.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::Usage;
use lockkeeper::backends::postgres::PlainClient;
use mysql::Conn;
use mysql::prelude::Queryable;

use super::lock::{Held, Lock, LockRequest};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::sql::{Rows, SqlConnection};

/// Between two attempts, as in the write-ups.
const PACE: Duration = Duration::from_millis(100);

/// MySQL's error for a primary key that is there.
const DUPLICATE_KEY: u16 = 1062;
/// MySQL's error for statements that wait for each other: those of waiters that a `DELETE` wakes.
const DEADLOCK: u16 = 1213;

/// A connection to a database with a table of locks.
pub(super) trait LockRows: SqlConnection {
    /// Inserts the row of a name, and returns whether it was absent.
    fn insert(&mut self, table: &str, name: &str) -> Result<bool, Error>;
}

impl LockRows for PlainClient {
    fn insert(&mut self, table: &str, name: &str) -> Result<bool, Error> {
        self.change(&format!(
            "INSERT INTO {table} (name) VALUES ('{name}') ON CONFLICT DO NOTHING"
        ))
    }
}

impl LockRows for Conn {
    fn insert(&mut self, table: &str, name: &str) -> Result<bool, Error> {
        match self.query_drop(format!("INSERT INTO {table} (name) VALUES ('{name}')")) {
            Ok(()) => Ok(true),
            Err(mysql::Error::MySqlError(error))
                if matches!(error.code, DUPLICATE_KEY | DEADLOCK) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}

pub(super) struct InsertDelete<C: SqlConnection> {
    rows: Arc<Rows<C>>,
    table: String,
    cancel: Cancellation,
}

impl<C: LockRows> InsertDelete<C> {
    /// Creates the table, unless another program of the run has done so.
    pub(super) fn create(
        rows: Rows<C>,
        table: String,
        cancel: &Cancellation,
    ) -> Result<Self, Error> {
        let options = C::TABLE_OPTIONS;
        rows.change(&format!(
            "CREATE TABLE IF NOT EXISTS {table} (name VARCHAR(200) PRIMARY KEY) {options}"
        ))?;
        Ok(Self {
            rows: Arc::new(rows),
            table,
            cancel: cancel.clone(),
        })
    }
}

impl<C: LockRows> Lock for InsertDelete<C> {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let attempt = |_| {
            let insert = |connection: &mut C| connection.insert(&self.table, name);
            let is_inserted = self.rows.with_connection(insert)?;
            Ok(is_inserted.then(|| {
                let delete = format!("DELETE FROM {} WHERE name = '{name}'", self.table);
                let rows = Arc::clone(&self.rows);
                Held::new(move || rows.change(&delete).map(drop))
            }))
        };
        self.cancel.retry(request.wait, || PACE, attempt)
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.rows.usage())
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}
