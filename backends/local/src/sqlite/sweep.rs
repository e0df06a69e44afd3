//! Removes the rows of dead waiters and of expired leases. Without that, a name that is never
//! requested again would keep its row forever, for example the name of a killed job with a number.
//!
//! A lease that has not expired stays, also if its process is dead: a ticket may pass it on to the process that opens
//! the file now. Who asks for the name gets it at once all the same.

use lockkeeper_core::Error;
use rusqlite::Row;

use super::db::Session;
use super::holders::{self, LockRow};
use super::process::KnownProcesses;
use super::store::Store;
use super::wait_queue;

/// The largest number of rows that one sweep removes. The next opening does the rest.
const BATCH: usize = 1_000;

const WAITERS: &str = "SELECT pid, start, place, id FROM waiter";
/// Names with a waiter are left out: the waiter takes them over.
const LOCKS: &str = concat!(
    "SELECT ",
    holders::lock_columns!(),
    ", namespace, name FROM lock WHERE name <> '' AND NOT EXISTS (SELECT 1 FROM waiter
 WHERE waiter.namespace = lock.namespace AND waiter.name = lock.name AND waiter.permits = lock.permits)"
);
/// Keeps a row that was renewed or granted since it was read, or that has a waiter now.
const FREE: &str =
    "DELETE FROM lock WHERE namespace = ?1 AND name = ?2 AND permits = ?3 AND slot = ?4
 AND epoch = ?5 AND expires = ?6
 AND NOT EXISTS (SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2 AND permits = ?3)";

impl Store {
    /// Removes the rows of dead waiters and of expired leases.
    ///
    /// # Errors
    /// Where the database cannot be written. No lock depends on a sweep: the next opening repeats it.
    pub(super) fn sweep(&self) -> Result<(), Error> {
        let mut processes = KnownProcesses::default();
        self.remove_found(
            WAITERS,
            |row| {
                let is_dead = processes.is_dead(&holders::process(row, 0)?);
                Ok(is_dead.then_some(row.get::<_, i64>(3)?))
            },
            |session, id| wait_queue::dequeue(session, *id),
        )?;
        self.remove_found(
            LOCKS,
            |row| {
                let lock = holders::lock_row(row)?;
                // Read after the row: a request later than `now` would count as from another boot.
                let is_over = !lock.is_unexpired(self.clock.now());
                let names: (String, String) = (row.get(12)?, row.get(13)?);
                Ok(is_over.then_some((lock, names)))
            },
            |session, (lock, (namespace, name)): &(LockRow, (String, String))| {
                let epoch = holders::signed(lock.epoch);
                let expires = holders::nanos(lock.expires);
                let (permits, slot) = (lock.mode.is_permit(), lock.slot);
                let params = (namespace, name, permits, slot, epoch, expires);
                session.change(FREE, params).map(drop)
            },
        )
    }

    /// Removes the rows that `find` selects from the query `select`, in one write transaction.
    fn remove_found<T>(
        &self,
        select: &str,
        mut find: impl FnMut(&Row<'_>) -> rusqlite::Result<Option<T>>,
        remove: impl Fn(&Session<'_>, &T) -> rusqlite::Result<()>,
    ) -> Result<(), Error> {
        let retry = self.brief_retry();
        let found = self
            .db
            .run(&retry, |session| session.all(select, (), &mut find))?;
        let found: Vec<_> = found.into_iter().flatten().take(BATCH).collect();
        if found.is_empty() {
            return Ok(());
        }
        self.db.transact(&retry, |session| {
            found.iter().try_for_each(|row| remove(session, row))
        })
    }
}
