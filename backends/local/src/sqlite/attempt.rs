//! One attempt to acquire a name that may be held or have waiters, in a write transaction.

use lockkeeper_core::{Grant, HostInstant};

use super::db::Session;
use super::process::Process;
use super::wait_queue::{self, Acquisition, LockRow, NextHolder, SqliteLease};

/// The caller's entry in the queue of a name.
#[derive(Clone, Copy)]
pub(super) struct QueueEntry<'a> {
    /// The id of the caller's row, if it has one.
    pub(super) id: Option<i64>,
    /// The address at which the caller is notified.
    pub(super) address: &'a str,
}

/// The result of an attempt.
pub(super) enum Attempt {
    /// The name was granted, and the caller's row was removed.
    Granted(Grant<SqliteLease>),
    /// The name is busy. The first part is the waiter to notify.
    Busy(NextHolder, Busy),
}

/// The state of a name that is held, or that another waiter gets first.
pub(super) struct Busy {
    /// When the lease or the reservation expires.
    pub(super) until: HostInstant,
    pub(super) holder: Option<Process>,
    /// The id of the caller's row.
    pub(super) id: Option<i64>,
    /// The number of waiters ahead in the queue, at most 2.
    pub(super) ahead: u32,
}

/// Makes one attempt. With `entry`, a caller that finds the name busy is queued.
pub(super) fn attempt(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    entry: Option<QueueEntry<'_>>,
    now: HostInstant,
) -> rusqlite::Result<Attempt> {
    let key = acquisition.key;
    let mut id = entry.and_then(|entry| entry.id);
    if let Some(known) = id
        && !wait_queue::confirm_waiting(session, known)?
    {
        id = None;
    }
    let held = wait_queue::read(session, key)?;
    let recovered = held.as_ref().filter(|held| {
        // The reply to an earlier attempt was lost.
        acquisition.recover && held.is_of(&acquisition.request.owner()) && held.is_live(now)
    });
    let next = match (&held, recovered) {
        (None, _) | (_, Some(_)) => NextHolder::Caller,
        (Some(held), None) => next_holder(session, acquisition, held, id, now)?,
    };
    if let NextHolder::Caller = next {
        if let Some(id) = id {
            wait_queue::dequeue(session, id)?;
        }
        let grant = match recovered {
            Some(held) => acquisition.grant(held.epoch, held.asked_at),
            None => wait_queue::take(session, acquisition, now)?,
        };
        return Ok(Attempt::Granted(grant));
    }
    let mut ahead = 0;
    if let Some(entry) = entry {
        let queued = match id {
            Some(id) => id,
            None => wait_queue::enqueue(session, key, entry.address)?,
        };
        id = Some(queued);
        if !held.as_ref().is_some_and(|held| held.contended) {
            wait_queue::mark_contended(session, key)?;
        }
        ahead = wait_queue::count_ahead(session, key, queued)?;
    }
    let (until, holder) = match (&next, held) {
        // The row is unchanged.
        (NextHolder::None, Some(held)) => (held.expires, (held.epoch != 0).then_some(held.holder)),
        _ => (now + wait_queue::GRACE, None),
    };
    let busy = Busy {
        until,
        holder,
        id,
        ahead,
    };
    Ok(Attempt::Busy(next, busy))
}

/// Returns the next holder. [`NextHolder::None`] leaves the name to its holder, or to the waiter for
/// which it is reserved.
fn next_holder(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    held: &LockRow,
    id: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<NextHolder> {
    let is_reserved = held.epoch == 0;
    if is_reserved && id == Some(held.reserved) {
        return Ok(NextHolder::Caller);
    }
    if held.is_live(now) && (!is_reserved || wait_queue::is_queued(session, held.reserved)?) {
        return Ok(NextHolder::None);
    }
    if is_reserved {
        wait_queue::mark_stale(session, held.reserved)?;
    }
    match wait_queue::reserve_next(session, acquisition.key, id, now)? {
        reserved @ NextHolder::Reserved { .. } => Ok(reserved),
        _ => Ok(NextHolder::Caller),
    }
}
