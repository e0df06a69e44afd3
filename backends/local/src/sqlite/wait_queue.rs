//! The queue of the waiters for a name. Statements of more than one step run in a write transaction.
//!
//! The ids of waiters begin with the clock. So a row of a deleted file never has the id of a row in the new
//! file.

use std::time::Duration;

use lockkeeper_core::{HostInstant, Mode};

use super::db::Session;
use super::holders::{self, Admission, Key, LockRow, process, signed, stored_mode};
use super::process::Process;

/// How long a name is reserved for a notified waiter before the next waiter gets it.
pub(super) const GRACE: Duration = Duration::from_millis(100);

const ENQUEUE: &str =
    "INSERT INTO waiter (namespace, name, permits, mode, pid, start, place, wake, stale)
 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0)";
const STALE: &str = "SELECT stale FROM waiter WHERE id = ?1";
const SET_STALE: &str = "UPDATE waiter SET stale = ?2 WHERE id = ?1";
const DEQUEUE: &str = "DELETE FROM waiter WHERE id = ?1";
const FIRST: &str = "SELECT id, pid, start, place, wake, stale, mode FROM waiter
 WHERE namespace = ?1 AND name = ?2 AND permits = ?3 AND id NOT IN
 (SELECT reserved FROM lock WHERE namespace = ?1 AND name = ?2 AND permits = ?3)
 ORDER BY stale, id LIMIT 1";
const COUNT_AHEAD: &str = "SELECT count(*) FROM (SELECT 1 FROM waiter
 WHERE namespace = ?1 AND name = ?2 AND permits = ?3 AND stale = 0 AND id < ?4 LIMIT 2)";

/// The process that gets a name next.
pub(super) enum NextHolder {
    /// No waiter.
    None,
    /// The first waiter, when the holders admit it.
    Later,
    /// All remaining waiters did not respond to an earlier notification. The first one is notified, but
    /// the name is not reserved for it.
    Unresponsive { id: i64, wake: String },
    /// The caller.
    Caller,
    /// The waiter for which the name is reserved.
    Reserved { id: i64, wake: String },
}

/// Adds a waiter of this process to the queue of a name, and returns its id.
pub(super) fn enqueue(
    session: &Session<'_>,
    key: Key<'_>,
    mode: Mode,
    wake: &str,
) -> rusqlite::Result<i64> {
    let process = Process::own();
    let params = (
        key.namespace,
        key.name,
        key.permits,
        stored_mode(mode),
        process.pid,
        signed(process.start),
        process.pid_scope.as_str(),
        wake,
    );
    session.change(ENQUEUE, params)?;
    Ok(session.last_id())
}

/// Clears the mark of [`mark_stale`]. Returns `false` if the row of the waiter is gone.
pub(super) fn confirm_waiting(session: &Session<'_>, id: i64) -> rusqlite::Result<bool> {
    let stale = session.first(STALE, (id,), |row| row.get::<_, bool>(0))?;
    if stale == Some(true) {
        session.change(SET_STALE, (id, false))?;
    }
    Ok(stale.is_some())
}

/// Marks a waiter that did not respond. Others come first until [`confirm_waiting`].
pub(super) fn mark_stale(session: &Session<'_>, id: i64) -> rusqlite::Result<()> {
    session.change(SET_STALE, (id, true)).map(drop)
}

pub(super) fn is_queued(session: &Session<'_>, id: i64) -> rusqlite::Result<bool> {
    Ok(session.first(STALE, (id,), |_| Ok(()))?.is_some())
}

/// Removes a waiter from the queue.
pub(super) fn dequeue(session: &Session<'_>, id: i64) -> rusqlite::Result<()> {
    session.change(DEQUEUE, (id,)).map(drop)
}

/// Returns how many waiters are ahead of a waiter: 0, 1, or 2 for more.
pub(super) fn count_ahead(session: &Session<'_>, key: Key<'_>, id: i64) -> rusqlite::Result<u32> {
    let params = (key.namespace, key.name, key.permits, id);
    let count = session.first(COUNT_AHEAD, params, |row| row.get(0))?;
    Ok(count.unwrap_or(0))
}

/// Finds the first living waiter for which the name is not reserved yet, and reserves the name for it if
/// the holders admit it. Removes dead waiters ahead of it.
pub(super) fn reserve_next(
    session: &Session<'_>,
    key: Key<'_>,
    rows: &mut Vec<LockRow>,
    caller: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<NextHolder> {
    loop {
        let params = (key.namespace, key.name, key.permits);
        let found = session.first(FIRST, params, |row| {
            Ok((
                row.get::<_, i64>(0)?,
                process(row, 1)?,
                row.get::<_, String>(4)?,
                row.get::<_, bool>(5)?,
                holders::mode(row.get(6)?),
            ))
        })?;
        let Some((id, process, wake, stale, mode)) = found else {
            return Ok(NextHolder::None);
        };
        if caller == Some(id) {
            return Ok(NextHolder::Caller);
        }
        if process.is_dead() {
            dequeue(session, id)?;
            continue;
        }
        if stale {
            return Ok(NextHolder::Unresponsive { id, wake });
        }
        let Admission::Slot(slot) = holders::admit(rows, mode) else {
            return Ok(NextHolder::Later);
        };
        let reserved = holders::reserve(session, key, (mode, slot), (id, process), now)?;
        // All smaller slots are taken.
        rows.insert(slot as usize, reserved);
        return Ok(NextHolder::Reserved { id, wake });
    }
}
