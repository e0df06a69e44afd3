//! `WATCH`, read, think, `MULTI`, write, `EXEC`: the server refuses the `EXEC` when a watched key
//! was written since. What is watched belongs to the connection, so every thread needs its own.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper::CancelToken;
use redis::{Connection, cmd, pipe};

use super::{Attempt, retry};
use crate::error::Failure;
use crate::store::redis::{Door, Keys};
use crate::strategy::transaction::{Job, Moment, Outcome, Strategy};

/// `WATCH`, `MULTI`, `EXEC`.
pub(crate) struct Watch {
    door: Door,
    keys: Arc<Keys>,
    /// Those that no thread uses now.
    idle: Mutex<Vec<Connection>>,
    stop: CancelToken,
}

impl Watch {
    /// Changes `keys` behind `door`.
    pub(crate) fn new(door: &Door, keys: &Arc<Keys>, stop: &CancelToken) -> Self {
        Self {
            door: door.clone(),
            keys: Arc::clone(keys),
            idle: Mutex::default(),
            stop: stop.clone(),
        }
    }

    fn attempt(&self, connection: &mut Connection, job: &Job<'_>) -> Result<Attempt, Failure> {
        let cells = job.cells.iter().map(|&cell| self.keys.cell(cell));
        let cells: Vec<_> = cells.collect();
        cmd("WATCH").arg(&cells).exec(connection)?;
        let mut read = Vec::with_capacity(cells.len());
        for cell in &cells {
            read.push(cmd("GET").arg(cell).query(connection)?);
        }
        (job.at)(Moment::Read)?;
        let Some(after) = (job.decide)(&read) else {
            cmd("UNWATCH").exec(connection)?;
            return Ok(Attempt::Declined);
        };
        let mut write = pipe();
        write.atomic();
        for (cell, value) in cells.iter().zip(after) {
            write
                .cmd("SET")
                .arg(cell)
                .arg(value)
                .arg("KEEPTTL")
                .ignore();
        }
        write
            .cmd("RPUSH")
            .arg(self.keys.users())
            .arg(job.user)
            .ignore();
        // Nil: somebody else has written.
        let written: Option<()> = write.query(connection)?;
        Ok(match written {
            Some(()) => Attempt::Written,
            None => Attempt::TooLate,
        })
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Strategy for Watch {
    fn update(&self, job: &Job<'_>) -> Result<Outcome, Failure> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.door.connect()?,
        };
        let outcome = retry(job, &self.stop, || self.attempt(&mut connection, job))?;
        // Not after an error: it may still watch.
        self.idle().push(connection);
        Ok(outcome)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
