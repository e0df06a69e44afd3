//! A version beside each value: the write says which version was read, and changes nothing when it
//! is not that any more. All cells and the user change in one transaction, or none.

use lockkeeper::CancelToken;
use mysql::prelude::Queryable;
use mysql::{PooledConn, TxOpts};

use super::{Attempt, retry};
use crate::error::Failure;
use crate::store::mysql::Rows;
use crate::strategy::transaction::{Job, Moment, Outcome, Strategy};

/// Compare and set on a version.
#[derive(Debug)]
pub(crate) struct Versions {
    rows: Rows,
    stop: CancelToken,
}

impl Versions {
    /// Changes `rows`.
    pub(crate) fn new(rows: &Rows, stop: &CancelToken) -> Self {
        Self {
            rows: rows.clone(),
            stop: stop.clone(),
        }
    }

    fn attempt(&self, job: &Job<'_>) -> Result<Attempt, Failure> {
        let read = self.read(&mut self.rows.connection()?, job.cells)?;
        // Without a connection, as it should be.
        (job.at)(Moment::Read)?;
        let values: Vec<_> = read.iter().map(|&(value, _)| value).collect();
        let Some(after) = (job.decide)(&values) else {
            return Ok(Attempt::Declined);
        };
        let changes = job.cells.iter().zip(after).zip(read);
        let changes: Vec<_> = changes
            .map(|((&cell, after), (_, version))| (cell, after, version))
            .collect();
        self.write(&mut self.rows.connection()?, &changes, job.user)
    }

    fn read(&self, connection: &mut PooledConn, cells: &[u32]) -> Result<Vec<(i64, i64)>, Failure> {
        let table = self.rows.cells();
        let one = |cell: &u32| {
            let sql = format!("SELECT value, version FROM {table} WHERE cell = {cell}");
            let row = connection.query_first(sql)?;
            row.ok_or_else(|| Failure::Failed("the scenario's data is gone".to_owned()))
        };
        cells.iter().map(one).collect()
    }

    fn write(
        &self,
        connection: &mut PooledConn,
        changes: &[(u32, i64, i64)],
        user: u32,
    ) -> Result<Attempt, Failure> {
        let (cells, users) = (self.rows.cells(), self.rows.users());
        let mut transaction = connection.start_transaction(TxOpts::default())?;
        for (cell, after, version) in changes {
            transaction.query_drop(format!(
                "UPDATE {cells} SET value = {after}, version = version + 1 \
                 WHERE cell = {cell} AND version = {version}"
            ))?;
            if transaction.affected_rows() == 0 {
                // Dropped, it is rolled back.
                return Ok(Attempt::TooLate);
            }
        }
        transaction.query_drop(format!("INSERT INTO {users} (user) VALUES ({user})"))?;
        transaction.commit()?;
        Ok(Attempt::Written)
    }
}

impl Strategy for Versions {
    fn update(&self, job: &Job<'_>) -> Result<Outcome, Failure> {
        retry(job, &self.stop, || self.attempt(job))
    }
}
