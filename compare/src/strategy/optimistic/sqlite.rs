//! A version beside each value: the write says which version was read, and changes nothing when it
//! is not that any more. All cells and the user change in one transaction, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::{CancelToken, Usage};
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{Attempt, retry};
use crate::error::Failure;
use crate::store::sqlite::Rows;
use crate::strategy::transaction::{Job, Moment, Outcome, Strategy};

/// Compare and set on a version.
#[derive(Debug)]
pub(crate) struct Versions {
    rows: Arc<Rows>,
    statements: AtomicU64,
    stop: CancelToken,
}

impl Versions {
    /// Changes `rows`.
    pub(crate) fn new(rows: &Arc<Rows>, stop: &CancelToken) -> Self {
        Self {
            rows: Arc::clone(rows),
            statements: AtomicU64::new(0),
            stop: stop.clone(),
        }
    }

    fn attempt(&self, job: &Job<'_>) -> Result<Attempt, Failure> {
        let mut read = Vec::with_capacity(job.cells.len());
        let mut versions = Vec::with_capacity(job.cells.len());
        for &cell in job.cells {
            let (value, version) = self.rows.with(|c| read_one(c, cell))?;
            self.count(1);
            read.push(value);
            versions.push(version);
        }
        (job.at)(Moment::Read)?;
        let Some(after) = (job.decide)(&read) else {
            return Ok(Attempt::Declined);
        };
        let changes: Vec<_> = job.cells.iter().copied().zip(after).zip(versions).collect();
        let written = self.rows.with(|c| write(c, &changes, job.user))?;
        // BEGIN, an UPDATE each, INSERT, COMMIT.
        self.count(u64::try_from(changes.len() + 3).unwrap_or(u64::MAX));
        Ok(if written {
            Attempt::Written
        } else {
            Attempt::TooLate
        })
    }

    fn count(&self, statements: u64) {
        self.statements.fetch_add(statements, Ordering::Relaxed);
    }
}

fn read_one(connection: &Connection, cell: u32) -> rusqlite::Result<(i64, i64)> {
    connection
        .prepare_cached("SELECT value, version FROM cells WHERE cell = ?1")?
        .query_row([cell], |row| Ok((row.get(0)?, row.get(1)?)))
}

/// False: somebody else has written one of them since, and nothing is changed.
fn write(
    connection: &Connection,
    changes: &[((u32, i64), i64)],
    user: u32,
) -> rusqlite::Result<bool> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    for &((cell, value), version) in changes {
        let changed = transaction
            .prepare_cached(
                "UPDATE cells SET value = ?1, version = version + 1 WHERE cell = ?2 AND version = ?3",
            )?
            .execute((value, cell, version))?;
        if changed == 0 {
            return Ok(false);
        }
    }
    transaction
        .prepare_cached("INSERT INTO users (user) VALUES (?1)")?
        .execute([user])?;
    transaction.commit()?;
    Ok(true)
}

impl Strategy for Versions {
    fn update(&self, job: &Job<'_>) -> Result<Outcome, Failure> {
        retry(job, &self.stop, || self.attempt(job))
    }

    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            commands: self.statements.load(Ordering::Relaxed),
            // Those of the data.
            connections: 0,
        })
    }
}
