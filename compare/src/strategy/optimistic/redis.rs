//! `WATCH`, read, think, `MULTI`, write, `EXEC`: the server refuses the `EXEC` if a watched key was
//! written since. A `WATCH` belongs to its connection, so every thread needs one of its own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{Connection, cmd, pipe};

use super::retry::{Attempt, retry};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::redis::client::RedisConfig;
use crate::store::redis::keys::Keys;
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

/// `WATCH`, `MULTI`, `EXEC`.
pub(crate) struct Watch {
    config: RedisConfig,
    keys: Arc<Keys>,
    /// Connections that no thread uses now.
    idle: Mutex<Vec<Connection>>,
    cancel: Cancellation,
}

impl Watch {
    /// Changes `keys`.
    pub(crate) fn new(config: &RedisConfig, keys: &Arc<Keys>, cancel: &Cancellation) -> Self {
        Self {
            config: config.clone(),
            keys: Arc::clone(keys),
            idle: Mutex::default(),
            cancel: cancel.clone(),
        }
    }

    fn attempt(
        &self,
        connection: &mut Connection,
        transaction: &Transaction<'_>,
    ) -> Result<Attempt, Error> {
        let cells = transaction.cells.iter().map(|&cell| self.keys.cell(cell));
        let cells: Vec<_> = cells.collect();
        cmd("WATCH").arg(&cells).exec(connection)?;
        let mut values = Vec::with_capacity(cells.len());
        for cell in &cells {
            values.push(cmd("GET").arg(cell).query(connection)?);
        }
        (transaction.on_step)(Step::Read)?;
        let Some(values) = (transaction.decide)(&values) else {
            cmd("UNWATCH").exec(connection)?;
            return Ok(Attempt::Declined);
        };
        let mut write = pipe();
        write.atomic();
        for (cell, value) in cells.iter().zip(values) {
            let set = write.cmd("SET").arg(cell).arg(value);
            set.arg("KEEPTTL").ignore();
        }
        let push = write.cmd("RPUSH").arg(self.keys.users());
        push.arg(transaction.user).ignore();
        // Nil: another transaction has written.
        let written: Option<()> = write.query(connection)?;
        Ok(match written {
            Some(()) => Attempt::Written,
            None => Attempt::TooLate,
        })
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transactor for Watch {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.config.connect()?,
        };
        let outcome = retry(transaction, &self.cancel, || {
            self.attempt(&mut connection, transaction)
        })?;
        // Not after an error, when keys may still be watched.
        self.idle().push(connection);
        Ok(outcome)
    }
}
