//! A version beside each value: the write names the version that was read, and changes nothing if
//! there is a newer one. All cells and the user change in one transaction, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::Usage;

use super::retry;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::sql::{Rows, SqlConnection};
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

pub(crate) struct Versions<C: SqlConnection> {
    rows: Arc<Rows<C>>,
    statements: AtomicU64,
    cancel: Cancellation,
}

impl<C: SqlConnection> Versions<C> {
    pub(crate) fn new(rows: &Arc<Rows<C>>, cancel: &Cancellation) -> Self {
        Self {
            rows: Arc::clone(rows),
            statements: AtomicU64::new(0),
            cancel: cancel.clone(),
        }
    }

    fn attempt(&self, transaction: &Transaction<'_>) -> Result<Option<Outcome>, Error> {
        let read = self.read(transaction.cells)?;
        // The thread keeps no connection while it thinks.
        (transaction.on_step)(Step::Read)?;
        let values: Vec<_> = read.iter().map(|&(value, _)| value).collect();
        let Some(values) = (transaction.decide)(&values) else {
            return Ok(Some(Outcome::TurnedAway));
        };
        let (cells, users) = (self.rows.cells(), self.rows.users());
        let changes = transaction.cells.iter().zip(values).zip(read);
        let updates = changes.map(|((cell, value), (_, version))| {
            format!(
                "UPDATE {cells} SET value = {value}, version = version + 1 \
                 WHERE cell = {cell} AND version = {version}"
            )
        });
        let user = transaction.user;
        let insert = format!("INSERT INTO {users} (user_id) VALUES ({user})");

        let mut connection = self.rows.connection()?;
        self.change(&mut connection, C::BEGIN)?;
        let refused = updates
            .chain([insert])
            .map(|statement| self.change(&mut connection, &statement))
            .find(|changed| !matches!(changed, Ok(true)));
        let (end, outcome) = match refused {
            None => ("COMMIT", Ok(Some(Outcome::Done))),
            Some(changed) => ("ROLLBACK", changed.map(|_| None)),
        };
        let ended = self.change(&mut connection, end);
        outcome.and_then(|outcome| ended.map(|_| outcome))
    }

    /// Returns value and version of each cell.
    fn read(&self, cells: &[u32]) -> Result<Vec<(i64, i64)>, Error> {
        let (mut connection, table) = (self.rows.connection()?, self.rows.cells());
        let read = |cell| {
            self.statements.fetch_add(1, Ordering::Relaxed);
            connection.pair(&format!(
                "SELECT value, version FROM {table} WHERE cell = {cell}"
            ))
        };
        cells.iter().map(read).collect()
    }

    fn change(&self, connection: &mut C, sql: &str) -> Result<bool, Error> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        connection.change(sql)
    }
}

impl<C: SqlConnection> Transactor for Versions<C> {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error> {
        retry(transaction, &self.cancel, || self.attempt(transaction))
    }

    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            commands: self.statements.load(Ordering::Relaxed),
            // The connections are those of the data.
            connections: 0,
        })
    }
}
