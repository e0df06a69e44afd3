//! A version beside each value: the write names the version that was read, and changes nothing if
//! there is a newer one. All cells and the user change in one transaction, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::Usage;
use rusqlite::{Connection, TransactionBehavior};

use super::retry::{Attempt, retry};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::sqlite::Rows;
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

/// Compare and set on a version.
pub(crate) struct Versions {
    rows: Arc<Rows>,
    statements: AtomicU64,
    cancel: Cancellation,
}

impl Versions {
    /// Changes `rows`.
    pub(crate) fn new(rows: &Arc<Rows>, cancel: &Cancellation) -> Self {
        Self {
            rows: Arc::clone(rows),
            statements: AtomicU64::new(0),
            cancel: cancel.clone(),
        }
    }

    fn attempt(&self, transaction: &Transaction<'_>) -> Result<Attempt, Error> {
        let mut values = Vec::with_capacity(transaction.cells.len());
        let mut versions = Vec::with_capacity(transaction.cells.len());
        for &cell in transaction.cells {
            let (value, version) = self.rows.with(|c| read(c, cell))?;
            self.count(1);
            values.push(value);
            versions.push(version);
        }
        (transaction.on_step)(Step::Read)?;
        let Some(values) = (transaction.decide)(&values) else {
            return Ok(Attempt::Declined);
        };
        let changes = transaction.cells.iter().copied().zip(values);
        let changes: Vec<_> = changes.zip(versions).collect();
        let written = self.rows.with(|c| write(c, &changes, transaction.user))?;
        // BEGIN, an UPDATE each, INSERT, COMMIT.
        self.count(u64::try_from(changes.len() + 3).unwrap_or(u64::MAX));
        Ok(written)
    }

    fn count(&self, statements: u64) {
        self.statements.fetch_add(statements, Ordering::Relaxed);
    }
}

fn read(connection: &Connection, cell: u32) -> rusqlite::Result<(i64, i64)> {
    connection
        .prepare_cached("SELECT value, version FROM cells WHERE cell = ?1")?
        .query_row([cell], |row| Ok((row.get(0)?, row.get(1)?)))
}

fn write(
    connection: &Connection,
    changes: &[((u32, i64), i64)],
    user: u32,
) -> rusqlite::Result<Attempt> {
    let behavior = TransactionBehavior::Immediate;
    let transaction = rusqlite::Transaction::new_unchecked(connection, behavior)?;
    for &((cell, value), version) in changes {
        let update =
            "UPDATE cells SET value = ?1, version = version + 1 WHERE cell = ?2 AND version = ?3";
        let mut update = transaction.prepare_cached(update)?;
        if update.execute((value, cell, version))? == 0 {
            // Dropping the transaction rolls it back.
            return Ok(Attempt::TooLate);
        }
    }
    transaction
        .prepare_cached("INSERT INTO users (user) VALUES (?1)")?
        .execute([user])?;
    transaction.commit()?;
    Ok(Attempt::Written)
}

impl Transactor for Versions {
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
