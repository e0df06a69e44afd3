//! A good lock, released before the commit: `@Transactional` around a method that locks and unlocks
//! inside. The lock is free when the method returns, and the transaction commits after that. A
//! thread that comes in between reads the old data, and books the seat again.
//!
//! The lock is this library's, so that nothing is wrong but the order of the last two steps.

use std::sync::Arc;

use ::lockkeeper::Usage;

use super::lock::{Lock, release_all};
use super::lockkeeper::Lockkeeper;
use super::transaction::{Outcome, Step, Transaction, Transactor};
use crate::error::Error;
use crate::store::state::State;

/// Fails to protect `state` with `lock`.
pub(super) struct FreedEarly {
    pub(super) lock: Lockkeeper,
    pub(super) state: Arc<dyn State>,
}

impl Transactor for FreedEarly {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error> {
        let Some(held) = transaction.acquire_all(&self.lock)? else {
            return Ok(Outcome::TurnedAway);
        };
        let read = transaction.read(self.state.as_ref())?;
        let values = (transaction.decide)(&read);
        // Here is the mistake: nothing is written yet.
        release_all(held)?;
        (transaction.on_step)(Step::Released)?;
        let Some(values) = values else {
            return Ok(Outcome::TurnedAway);
        };
        (transaction.on_step)(Step::LateCommit)?;
        transaction.write(self.state.as_ref(), &values)?;
        Ok(Outcome::Done)
    }

    fn usage(&self) -> Option<Usage> {
        self.lock.usage()
    }
}
