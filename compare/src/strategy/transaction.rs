//! One read-think-write transaction of the application, and how a lock protects it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lock::{Held, Lock, Terms};
use crate::error::Failure;
use crate::store::state::State;

/// What the application wants to do: read the cells, think, and write what `decide` says of them.
pub(crate) struct Job<'a> {
    /// Names of the locks that protect the cells, sorted, as many as there are cells.
    pub(crate) locks: &'a [String],
    /// What is read and written, in the same order.
    pub(crate) cells: &'a [u32],
    /// Who is recorded when it is done.
    pub(crate) user: u32,
    /// What the locks are asked for with.
    pub(crate) terms: Terms,
    /// The new values for those that were read; `None`: there is nothing to be had any more.
    pub(crate) decide: &'a (dyn Fn(&[i64]) -> Option<Vec<i64>> + Sync),
    /// Told of each moment when it comes; the transaction goes on when it returns.
    pub(crate) at: &'a (dyn Fn(Moment) -> Result<(), Failure> + Sync),
}

/// A moment of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    /// It has what it needs to begin, so long after it was asked for.
    Granted(Duration),
    /// The cells are read: now is the time to think.
    Read,
    /// Nobody is kept out any more.
    Freed,
    /// It was freed, and is about to be written only now.
    LateCommit,
}

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Written.
    Done,
    /// There was nothing to be had any more.
    Declined,
    /// Somebody else was at it for too long.
    Busy,
    /// The request failed, and the application's user saw an error.
    Broken(String),
}

/// A way of doing transactions, as one program uses it with all its threads.
pub(crate) trait Strategy: std::fmt::Debug + Send + Sync {
    /// Does one.
    fn update(&self, job: &Job<'_>) -> Result<Outcome, Failure>;

    /// The lock, where it is one.
    fn lock(&self) -> Option<&dyn Lock> {
        None
    }

    /// What it has cost its store so far, where only it can tell.
    fn usage(&self) -> Option<lockkeeper::Usage> {
        self.lock().and_then(Lock::usage)
    }
}

/// Locks around the whole transaction: taken before the first read, freed after the last write.
#[derive(Debug)]
pub(crate) struct Locked<L> {
    lock: L,
    state: Arc<dyn State>,
}

impl<L> Locked<L> {
    /// `lock` protects `state`.
    pub(crate) fn new(lock: L, state: Arc<dyn State>) -> Self {
        Self { lock, state }
    }
}

impl<L: Lock> Strategy for Locked<L> {
    fn update(&self, job: &Job<'_>) -> Result<Outcome, Failure> {
        let Some(held) = take_all(&self.lock, job)? else {
            return Ok(Outcome::Busy);
        };
        let read = read(self.state.as_ref(), job)?;
        (job.at)(Moment::Read)?;
        let after = (job.decide)(&read);
        if let Some(after) = &after {
            write(self.state.as_ref(), job, after)?;
        }
        free_all(held)?;
        (job.at)(Moment::Freed)?;
        Ok(match after {
            Some(_) => Outcome::Done,
            None => Outcome::Declined,
        })
    }

    fn lock(&self) -> Option<&dyn Lock> {
        Some(&self.lock)
    }
}

/// Takes every lock of the job in its order, or none.
pub(super) fn take_all(
    lock: &dyn Lock,
    job: &Job<'_>,
) -> Result<Option<Vec<Box<dyn Held>>>, Failure> {
    let asked = Instant::now();
    let mut all = Vec::with_capacity(job.locks.len());
    for name in job.locks {
        let terms = Terms {
            wait: job.terms.wait.saturating_sub(asked.elapsed()),
            ..job.terms
        };
        match lock.take(name, terms)? {
            Some(held) => all.push(held),
            None => {
                free_all(all)?;
                return Ok(None);
            }
        }
    }
    (job.at)(Moment::Granted(asked.elapsed()))?;
    Ok(Some(all))
}

/// Frees them, the last one first.
pub(super) fn free_all(mut all: Vec<Box<dyn Held>>) -> Result<(), Failure> {
    while let Some(held) = all.pop() {
        held.release()?;
    }
    Ok(())
}

/// Reads the cells, a statement each.
pub(super) fn read(state: &dyn State, job: &Job<'_>) -> Result<Vec<i64>, Failure> {
    job.cells.iter().map(|&cell| state.read(cell)).collect()
}

/// Writes them, likewise, and records who did.
pub(super) fn write(state: &dyn State, job: &Job<'_>, values: &[i64]) -> Result<(), Failure> {
    for (&cell, &value) in job.cells.iter().zip(values) {
        state.write(cell, value)?;
    }
    state.record(job.user)
}
