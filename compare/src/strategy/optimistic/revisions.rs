//! The revision of each key of etcd or Consul, or the version of each node of ZooKeeper: the write names those that were
//! read, and the cluster refuses it if there is a newer one.
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
        let read = transaction.cells.iter().map(|&cell| {
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.cells.read_cell(cell)
        });
        let read = read.collect::<Result<Vec<_>, _>>()?;
        (transaction.on_step)(Step::Read)?;
        let values: Vec<_> = read.iter().map(|cell| cell.value).collect();
        let Some(values) = (transaction.decide)(&values) else {
            return Ok(Some(Outcome::TurnedAway));
        };
        let cells = transaction.cells.iter().zip(read).zip(values);
        let cells: Vec<_> = cells
            .map(|((&cell, read), value)| (cell, read, value))
            .collect();
        self.requests.fetch_add(1, Ordering::Relaxed);
        let written = self.cells.write_cells(&cells, transaction.user)?;
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
