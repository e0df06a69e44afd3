//! One attempt to acquire a name that may be held or have waiters, in a write transaction.

use lockkeeper_core::{Error, Grant, HostInstant, Mode};

use super::db::Session;
use super::holders::{self, Admission, LockRow};
use super::lease::{self, Acquisition, SqliteLease};
use super::process::{KnownProcesses, Process};
use super::wait_queue::{self, NextHolder};

/// The caller's entry in the queue of a name.
#[derive(Clone, Copy)]
pub(super) struct QueueEntry<'a> {
    /// The id of the caller's row, if it has one.
    pub(super) id: Option<i64>,
    /// The address at which the caller is notified.
    pub(super) address: &'a str,
}

/// The result of an attempt. The caller's row was removed unless it is [`Busy`](Outcome::Busy).
pub(super) struct Attempt {
    pub(super) outcome: Outcome,
    /// The waiter to notify after the commit.
    pub(super) next: NextHolder,
}

pub(super) enum Outcome {
    /// The grant, or the error that permits of another limit are held, or that the proposed epoch is too small.
    Answered(Result<Grant<SqliteLease>, Error>),
    Busy(Busy),
}

/// The state of a name whose holders do not admit the caller, or that another waiter gets first.
pub(super) struct Busy {
    /// When the first lease or reservation expires.
    pub(super) until: HostInstant,
    /// The processes of the holders.
    pub(super) holders: Vec<Process>,
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
    let mut rows = holders::read(session, key)?;
    let recovered = rows.iter().find(|row| {
        // The reply to an earlier attempt was lost.
        acquisition.recover && row.is_of(&acquisition.request.owner()) && row.is_live(now)
    });
    if let Some(row) = recovered {
        if let Some(id) = id {
            wait_queue::dequeue(session, id)?;
        }
        let grant = acquisition.grant(row.slot, row.epoch, row.asked_at);
        return Ok(Attempt {
            outcome: Outcome::Answered(Ok(grant)),
            next: NextHolder::None,
        });
    }
    let (next, admission) = find_slot(session, acquisition, &mut rows, id, now)?;
    let (outcome, next) = match admission {
        Admission::Slot(slot) => match refused_epoch(session, acquisition)? {
            Some(error) => (Outcome::Answered(Err(error)), next),
            None => {
                let (grant, next) = grant(session, acquisition, slot, id, now)?;
                (Outcome::Answered(Ok(grant)), next)
            }
        },
        Admission::No => {
            let busy = queue(session, acquisition, &rows, entry, id)?;
            (Outcome::Busy(busy), next)
        }
        Admission::OtherLimit(error) => {
            if let Some(id) = id {
                wait_queue::dequeue(session, id)?;
            }
            (Outcome::Answered(Err(error)), next)
        }
    };
    Ok(Attempt { outcome, next })
}

/// Returns an error if a request proposes an epoch that is not larger than the last epoch of the file.
fn refused_epoch(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
) -> rusqlite::Result<Option<Error>> {
    let Some(proposed) = acquisition.request.proposed_epoch() else {
        return Ok(None);
    };
    let last = lease::last_epoch(session)?;
    Ok((proposed <= last).then(|| Error::epoch_too_small(proposed, last)))
}

/// Returns the slot of the caller, or the reason why it gets none, and the waiter to notify instead.
/// Removes expired rows.
fn find_slot(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    rows: &mut Vec<LockRow>,
    id: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<(NextHolder, Admission)> {
    let (key, mode) = (acquisition.key, acquisition.request.mode());
    let is_own = |row: &&LockRow| id.is_some_and(|id| row.is_reserved_for(id));
    if let Some(own) = rows.iter().find(is_own) {
        return Ok((NextHolder::Caller, Admission::Slot(own.slot)));
    }
    holders::remove(session, key, rows, |row| Ok(!row.is_unexpired(now)))?;
    if !matches!(holders::admit(rows, mode), Admission::Slot(_)) {
        let mut processes = KnownProcesses::default();
        holders::remove(session, key, rows, |row| {
            let is_left = row.epoch == 0 && !wait_queue::is_queued(session, row.reserved)?;
            Ok(is_left || processes.is_dead(&row.holder))
        })?;
    }
    let refused = holders::admit(rows, mode);
    if !matches!(refused, Admission::Slot(_)) {
        return Ok((NextHolder::Later, refused));
    }
    let next = wait_queue::reserve_next(session, key, rows, id, now)?;
    let admission = match (&next, holders::admit(rows, mode)) {
        // Another waiter comes first.
        (NextHolder::Later | NextHolder::Reserved { .. }, Admission::Slot(_)) => Admission::No,
        (_, admission) => admission,
    };
    Ok((next, admission))
}

/// Grants a slot to the caller. If the next waiter is admitted beside the caller, reserves another slot for
/// that waiter.
fn grant(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    slot: u32,
    id: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<(Grant<SqliteLease>, NextHolder)> {
    if let Some(id) = id {
        wait_queue::dequeue(session, id)?;
    }
    let (grant, has_waiters) = lease::take(session, acquisition, slot, now)?;
    let is_alone = acquisition.request.mode() == Mode::Exclusive;
    let next = if id.is_some() && has_waiters && !is_alone {
        let key = acquisition.key;
        let mut rows = holders::read(session, key)?;
        wait_queue::reserve_next(session, key, &mut rows, None, now)?
    } else {
        NextHolder::None
    };
    Ok((grant, next))
}

/// Queues the caller if it waits.
fn queue(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    rows: &[LockRow],
    entry: Option<QueueEntry<'_>>,
    id: Option<i64>,
) -> rusqlite::Result<Busy> {
    let key = acquisition.key;
    let mut busy = Busy {
        until: HostInstant::NEVER,
        holders: Vec::new(),
        id,
        ahead: 0,
    };
    let Some(entry) = entry else {
        return Ok(busy);
    };
    let mode = acquisition.request.mode();
    let queued = match id {
        Some(id) => id,
        None => wait_queue::enqueue(session, key, mode, entry.address)?,
    };
    busy.id = Some(queued);
    if rows.iter().any(|row| !row.contended) {
        holders::mark_contended(session, key)?;
    }
    busy.ahead = wait_queue::count_ahead(session, key, queued)?;
    for row in rows {
        busy.until = busy.until.min(row.expires);
        if row.epoch != 0 && !busy.holders.contains(&row.holder) {
            busy.holders.push(row.holder.clone());
        }
    }
    Ok(busy)
}
