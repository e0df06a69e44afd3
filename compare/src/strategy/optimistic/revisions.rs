//! The version beside each value of a table, the revision of each key of etcd or Consul, or the version of each node of
//! ZooKeeper: the write names those that were read, and changes nothing if there is a newer one.
//! All cells and the user change in one transaction, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::Usage;

use super::retry;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::cells::Cells;
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

pub(crate) struct Revisions<C> {
    cells: Arc<C>,
    requests: AtomicU64,
    cancel: Cancellation,
}

impl<C: Cells> Revisions<C> {
    pub(crate) fn new(cells: &Arc<C>, cancel: &Cancellation) -> Self {
        Self {
            cells: Arc::clone(cells),
            requests: AtomicU64::new(0),
            cancel: cancel.clone(),
        }
    }

    fn attempt(&self, transaction: &Transaction<'_>) -> Result<Option<Outcome>, Error> {
        let read = self.cells.read_cells(transaction.cells)?;
        let reads = u64::try_from(read.len()).unwrap_or(u64::MAX);
        self.requests.fetch_add(reads, Ordering::Relaxed);
        // The thread keeps no connection while it thinks.
        (transaction.on_step)(Step::Read)?;
        let values: Vec<_> = read.iter().map(|cell| cell.value).collect();
        let Some(values) = (transaction.decide)(&values) else {
            return Ok(Some(Outcome::TurnedAway));
        };
        let cells = transaction.cells.iter().zip(read).zip(values);
        let cells: Vec<_> = cells
            .map(|((&cell, read), value)| (cell, read, value))
            .collect();
        let (written, requests) = self.cells.write_cells(&cells, transaction.user)?;
        self.requests.fetch_add(requests, Ordering::Relaxed);
        Ok(written.then_some(Outcome::Done))
    }
}

impl<C: Cells> Transactor for Revisions<C> {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error> {
        retry(transaction, &self.cancel, || self.attempt(transaction))
    }

    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            commands: self.requests.load(Ordering::Relaxed),
            // The connections are those of the data.
            connections: 0,
        })
    }
}
