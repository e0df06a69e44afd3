//! A version beside each value: the write names the version that was read, and changes nothing if
//! there is a newer one. All cells and the user change in one transaction, or none.

use mysql::prelude::Queryable;
use mysql::{PooledConn, TxOpts};

use super::retry::{Attempt, retry};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::mysql::tables::{Rows, row_is_missing};
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

/// Compare and set on a version.
pub(crate) struct Versions {
    rows: Rows,
    cancel: Cancellation,
}

impl Versions {
    /// Changes `rows`.
    pub(crate) fn new(rows: &Rows, cancel: &Cancellation) -> Self {
        Self {
            rows: rows.clone(),
            cancel: cancel.clone(),
        }
    }

    fn attempt(&self, transaction: &Transaction<'_>) -> Result<Attempt, Error> {
        let read = self.read(&mut self.rows.connection()?, transaction.cells)?;
        // The thread keeps no connection while it thinks.
        (transaction.on_step)(Step::Read)?;
        let values: Vec<_> = read.iter().map(|&(value, _)| value).collect();
        let Some(values) = (transaction.decide)(&values) else {
            return Ok(Attempt::Declined);
        };
        let changes = transaction.cells.iter().zip(values).zip(read);
        let changes: Vec<_> = changes
            .map(|((&cell, value), (_, version))| (cell, value, version))
            .collect();
        self.write(&mut self.rows.connection()?, &changes, transaction.user)
    }

    fn read(&self, connection: &mut PooledConn, cells: &[u32]) -> Result<Vec<(i64, i64)>, Error> {
        let table = self.rows.cells();
        let read = |cell: &u32| {
            let sql = format!("SELECT value, version FROM {table} WHERE cell = {cell}");
            connection.query_first(sql)?.ok_or_else(row_is_missing)
        };
        cells.iter().map(read).collect()
    }

    fn write(
        &self,
        connection: &mut PooledConn,
        changes: &[(u32, i64, i64)],
        user: u32,
    ) -> Result<Attempt, Error> {
        let (cells, users) = (self.rows.cells(), self.rows.users());
        let mut transaction = connection.start_transaction(TxOpts::default())?;
        for (cell, value, version) in changes {
            transaction.query_drop(format!(
                "UPDATE {cells} SET value = {value}, version = version + 1 \
                 WHERE cell = {cell} AND version = {version}"
            ))?;
            if transaction.affected_rows() == 0 {
                // Dropping the transaction rolls it back.
                return Ok(Attempt::TooLate);
            }
        }
        transaction.query_drop(format!("INSERT INTO {users} (user) VALUES ({user})"))?;
        transaction.commit()?;
        Ok(Attempt::Written)
    }
}

impl Transactor for Versions {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error> {
        retry(transaction, &self.cancel, || self.attempt(transaction))
    }
}
