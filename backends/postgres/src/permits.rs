//! The permits of a semaphore, as advisory locks.
//!
//! The key of a permit says the semaphore, the limit and the slot, so one look into `pg_locks` shows which permits are
//! live and of which limit. A session looks and takes while it holds the semaphore's gate. Sessions that wait do so for
//! the bell in the server, first come, first served. The first of them holds the bell, so that no attempt takes anything,
//! and looks and sleeps in one statement: a session that releases a permit ends that (`pg_cancel_backend`).

use std::time::Duration;

use lockkeeper_core::limit_mismatch;
use lockkeeper_remote::Failure;
use lockkeeper_remote::sessions::Attempted;

use crate::connection::Connection;
use crate::names::LockKey;
use crate::statements;

impl Connection {
    /// Tries to take a permit. An attempt that the server refused may have taken it.
    pub(crate) fn try_permit(
        &mut self,
        gate: &LockKey,
        limit: u32,
    ) -> Result<Attempted<LockKey>, Failure> {
        let take =
            |it: &mut Self| it.take_permit(&statements::TRY_PERMIT, gate, limit, Duration::ZERO);
        match self.showing(gate, take) {
            Err(failure @ (Failure::Closed(_) | Failure::Unanswered(_))) => Err(failure),
            attempted => Ok(attempted),
        }
    }

    /// Runs a statement that takes a permit of the semaphore with this gate.
    pub(crate) fn take_permit(
        &mut self,
        sql: &str,
        gate: &LockKey,
        limit: u32,
        pause: Duration,
    ) -> Attempted<LockKey> {
        let before = self.shared.last_epoch.get();
        let pause = pause.as_millis();
        let row = self.query(sql, &[&gate.number(), &limit, &pause])?;
        let array = row.text(1).unwrap_or_default();
        let mut found = array
            .trim_matches(['{', '}'])
            .split(',')
            .map(|number| number.parse::<u64>().ok());
        let mut next = || found.next().flatten();
        let (other, slot, epoch) = (next(), next(), next());
        if let Some(other) = other.and_then(|other| u32::try_from(other).ok()) {
            return Err(Failure::NotSent(limit_mismatch(limit, other)));
        }
        let slot = slot.and_then(|slot| u32::try_from(slot).ok());
        match slot.zip(epoch) {
            Some((slot, epoch)) => self.taken(gate.permit(limit, slot), before, epoch, slot),
            None => Ok(None),
        }
    }
}
