//! A good lock, freed before the commit: `@Transactional` around a method that locks and unlocks
//! inside. The lock is free when the method returns, and the transaction commits after that; who
//! comes in between reads what was there before, and books the seat again.
//!
//! The lock is this library's, so that there is nothing wrong but the order of the last two steps.

use std::sync::Arc;

use super::lock::Lock;
use super::transaction::{Job, Moment, Outcome, Strategy, free_all, read, take_all, write};
use crate::error::Failure;
use crate::store::state::State;

/// Commits after the unlock.
#[derive(Debug)]
pub(crate) struct FreedEarly<L> {
    lock: L,
    state: Arc<dyn State>,
}

impl<L> FreedEarly<L> {
    /// `lock` should protect `state`.
    pub(crate) fn new(lock: L, state: Arc<dyn State>) -> Self {
        Self { lock, state }
    }
}

impl<L: Lock> Strategy for FreedEarly<L> {
    fn update(&self, job: &Job<'_>) -> Result<Outcome, Failure> {
        let Some(held) = take_all(&self.lock, job)? else {
            return Ok(Outcome::Busy);
        };
        let read = read(self.state.as_ref(), job)?;
        (job.at)(Moment::Read)?;
        let after = (job.decide)(&read);
        // Here is the mistake: the change is not written yet.
        free_all(held)?;
        (job.at)(Moment::Freed)?;
        let Some(after) = after else {
            return Ok(Outcome::Declined);
        };
        (job.at)(Moment::LateCommit)?;
        write(self.state.as_ref(), job, &after)?;
        Ok(Outcome::Done)
    }

    fn usage(&self) -> Option<lockkeeper::Usage> {
        self.lock.usage()
    }
}
