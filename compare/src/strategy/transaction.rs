//! One read-think-write transaction of the application, and how a lock protects it.
//!
//! A strategy is a way to execute one transaction, and a lock around all of it ([`Locked`]) is one
//! such way. Scenarios that are about locks themselves use the strategy's lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::lockkeeper::Usage;

use super::lock::{Held, Lock, LockRequest, release_all};
use crate::error::Error;
use crate::store::state::State;

/// What the application wants to do: read the cells, think, and write what `decide` makes of them.
pub(crate) struct Transaction<'a> {
    /// The names of the locks that protect the cells, sorted, one for each cell.
    pub(crate) locks: &'a [String],
    /// The cells that are read and written, in the same order.
    pub(crate) cells: &'a [u32],
    /// The user to record at the end.
    pub(crate) user: u32,
    /// The request for each lock.
    pub(crate) request: LockRequest,
    /// Returns the new values for those that were read; `None` declines.
    pub(crate) decide: &'a (dyn Fn(&[i64]) -> Option<Vec<i64>> + Sync),
    /// Is called at each step; the transaction goes on when it returns.
    pub(crate) on_step: &'a (dyn Fn(Step) -> Result<(), Error> + Sync),
}

/// A step of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// The locks were granted, after this wait.
    Granted(Duration),
    /// The cells are read: now is the time to think.
    Read,
    /// The locks are released, or there are none.
    Released,
    /// The locks are released, and the commit comes only now.
    LateCommit,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was committed.
    Done,
    /// There was nothing left to be had; or the locks were busy, or other transactions came first,
    /// until the end of the wait.
    TurnedAway,
    /// The request failed, with the error that the application's user sees.
    Broken(String),
}

/// A way of doing transactions, as one program uses it with all its threads.
pub(crate) trait Transactor: Send + Sync {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error>;

    /// Returns the lock, if the transactor is based on one.
    fn lock(&self) -> Option<&dyn Lock> {
        None
    }

    /// Returns what it has cost its store so far, where no server can count it.
    fn usage(&self) -> Option<Usage> {
        self.lock().and_then(Lock::usage)
    }
}

/// Holds locks around the whole transaction: acquired before the first read, released after the
/// last write.
pub(crate) struct Locked {
    lock: Box<dyn Lock>,
    state: Arc<dyn State>,
}

impl Locked {
    pub(crate) fn new(lock: Box<dyn Lock>, state: Arc<dyn State>) -> Self {
        Self { lock, state }
    }
}

impl Transactor for Locked {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error> {
        let Some(held) = transaction.acquire_all(self.lock.as_ref())? else {
            return Ok(Outcome::TurnedAway);
        };
        let read = transaction.read(self.state.as_ref())?;
        let values = (transaction.decide)(&read);
        if let Some(values) = &values {
            transaction.write(self.state.as_ref(), values)?;
        }
        release_all(held)?;
        (transaction.on_step)(Step::Released)?;
        Ok(match values {
            Some(_) => Outcome::Done,
            None => Outcome::TurnedAway,
        })
    }

    fn lock(&self) -> Option<&dyn Lock> {
        Some(self.lock.as_ref())
    }
}

impl Transaction<'_> {
    /// Acquires all locks or none of them.
    pub(super) fn acquire_all(&self, lock: &dyn Lock) -> Result<Option<Vec<Held>>, Error> {
        let started = Instant::now();
        let all = lock.acquire_all(self.locks, self.request)?;
        if all.is_some() {
            (self.on_step)(Step::Granted(started.elapsed()))?;
        }
        Ok(all)
    }

    /// Reads the cells, with a statement each, and thinks.
    pub(super) fn read(&self, state: &dyn State) -> Result<Vec<i64>, Error> {
        let values = self.cells.iter().map(|&cell| state.read(cell));
        let values = values.collect::<Result<_, _>>()?;
        (self.on_step)(Step::Read)?;
        Ok(values)
    }

    /// Writes the cells, with a statement each, and records the user.
    pub(super) fn write(&self, state: &dyn State, values: &[i64]) -> Result<(), Error> {
        for (&cell, &value) in self.cells.iter().zip(values) {
            state.write(cell, value)?;
        }
        state.record(self.user)
    }
}
