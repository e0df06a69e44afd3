//! `WATCH`, read, think, `MULTI`, write, `EXEC`: the server refuses the `EXEC` if a watched key was
//! written since. A `WATCH` belongs to its connection, so every thread needs one of its own.

use std::sync::Arc;

use redis::{Connection, cmd, pipe};

use super::retry;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::pool::{POOL_TIMEOUT, Pool};
use crate::store::redis::keys::Keys;
use crate::strategy::transaction::{Outcome, Step, Transaction, Transactor};

pub(crate) struct Watch {
    keys: Arc<Keys>,
    connections: Pool<Connection>,
    cancel: Cancellation,
}

impl Watch {
    /// Changes `keys`, with at most a connection for each of these threads.
    pub(crate) fn open(
        keys: &Arc<Keys>,
        threads: u32,
        cancel: &Cancellation,
    ) -> Result<Self, Error> {
        Ok(Self {
            keys: Arc::clone(keys),
            connections: keys.config.pool(0..=threads)?,
            cancel: cancel.clone(),
        })
    }

    fn attempt(
        &self,
        connection: &mut Connection,
        transaction: &Transaction<'_>,
    ) -> Result<Option<Outcome>, Error> {
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
            return Ok(Some(Outcome::TurnedAway));
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
        Ok(written.map(|()| Outcome::Done))
    }
}

impl Transactor for Watch {
    fn execute(&self, transaction: &Transaction<'_>) -> Result<Outcome, Error> {
        let mut connection = self.connections.get(POOL_TIMEOUT)?;
        retry(transaction, &self.cancel, || {
            self.attempt(&mut connection, transaction)
        })
    }
}
