//! The revision of each key: the write names those that were read, and the cluster refuses it if a key has a newer one.
//! All cells and the user change in one transaction, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper::Usage;
use serde_json::json;

use super::retry;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::etcd::EtcdKeys;
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

pub(crate) struct Revisions {
    keys: Arc<EtcdKeys>,
    requests: AtomicU64,
    cancel: Cancellation,
}

impl Revisions {
    pub(crate) fn new(keys: &Arc<EtcdKeys>, cancel: &Cancellation) -> Self {
        Self {
            keys: Arc::clone(keys),
            requests: AtomicU64::new(0),
            cancel: cancel.clone(),
        }
    }

    fn attempt(&self, transaction: &Transaction<'_>) -> Result<Option<Outcome>, Error> {
        let read = transaction.cells.iter().map(|&cell| {
            self.requests.fetch_add(1, Ordering::Relaxed);
            self.keys.read_cell(cell)
        });
        let read = read.collect::<Result<Vec<_>, _>>()?;
        (transaction.on_step)(Step::Read)?;
        let values: Vec<_> = read.iter().map(|cell| cell.value).collect();
        let Some(values) = (transaction.decide)(&values) else {
            return Ok(Some(Outcome::TurnedAway));
        };
        let (mut unchanged, mut puts) = (Vec::new(), Vec::new());
        for ((&cell, value), read) in transaction.cells.iter().zip(values).zip(read) {
            let (key, revision) = (self.keys.cell(cell), read.revision.to_string());
            puts.push(self.keys.put(&key, &value.to_string()));
            unchanged.push(json!({
                "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision,
            }));
        }
        puts.push(self.keys.put_user(transaction.user));
        self.requests.fetch_add(1, Ordering::Relaxed);
        let written = self.keys.write_if(&unchanged, &puts)?;
        Ok(written.then_some(Outcome::Done))
    }
}

impl Transactor for Revisions {
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
