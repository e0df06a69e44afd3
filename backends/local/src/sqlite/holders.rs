//! The rows of a name: its holders, and the reservations for waiters. [`admit`] is the only rule about further
//! holders.
//!
//! The statement that takes a free name uses the slot of any existing row, so that it conflicts with each row.
//! That seek takes 2,000 of the 76,000 instructions of an exclusive lock and its release.

use lockkeeper_core::{Error, HostInstant, Mode, Owner, limit_mismatch};
use rusqlite::Row;

use super::db::Session;
use super::process::Process;
use super::wait_queue;

/// The columns that [`lock_row`] reads, in its order.
macro_rules! lock_columns {
    () => {
        "epoch, pid, start, place, process, request, asked, expires, contended, reserved, mode, slot"
    };
}
pub(super) use lock_columns;

const READ: &str = concat!(
    "SELECT ",
    lock_columns!(),
    " FROM lock WHERE namespace = ?1 AND name = ?2 AND permits = ?3 ORDER BY slot"
);
const REMOVE: &str =
    "DELETE FROM lock WHERE namespace = ?1 AND name = ?2 AND permits = ?3 AND slot = ?4";
const MARK_CONTENDED: &str =
    "UPDATE lock SET contended = 1 WHERE namespace = ?1 AND name = ?2 AND permits = ?3";
const RESERVE: &str = "INSERT INTO lock (namespace, name, permits, slot, mode, epoch, pid, start, place, process, request, since, asked, expires, contended, reserved)
 VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?7, ?8, 0, 0, 0, ?9, ?10, 1, ?11)";

/// Converts a number that is only stored and compared for equality: SQLite's integers are signed.
pub(super) fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// Converts an instant to the stored number. [`HostInstant::NEVER`] is the largest number.
pub(super) fn nanos(instant: HostInstant) -> i64 {
    i64::try_from(instant.as_nanos()).unwrap_or(i64::MAX)
}

fn instant(nanos: i64) -> HostInstant {
    match nanos {
        i64::MAX => HostInstant::NEVER,
        nanos => HostInstant::from_nanos(u64::try_from(nanos).unwrap_or(0)),
    }
}

/// Converts a mode to the stored number.
pub(super) fn stored_mode(mode: Mode) -> i64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => -1,
        Mode::Permit { limit } => limit.into(),
    }
}

pub(super) fn mode(stored: i64) -> Mode {
    match stored {
        0 => Mode::Exclusive,
        limit => u32::try_from(limit).map_or(Mode::Shared, |limit| Mode::Permit { limit }),
    }
}

/// The lock of a name in its namespace, or its semaphore.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) permits: bool,
}

/// A row of a name: a holder, or a reservation.
pub(super) struct LockRow {
    /// 0 if it is a reservation.
    pub(super) epoch: u64,
    pub(super) holder: Process,
    pub(super) nonce: u64,
    pub(super) request: u64,
    pub(super) asked_at: HostInstant,
    pub(super) expires: HostInstant,
    pub(super) contended: bool,
    /// The waiter for which the slot is reserved.
    pub(super) reserved: i64,
    pub(super) mode: Mode,
    pub(super) slot: u32,
}

impl LockRow {
    /// Returns whether the lease has not expired and its process lives.
    pub(super) fn is_live(&self, now: HostInstant) -> bool {
        self.is_unexpired(now) && !self.holder.is_dead()
    }

    /// Returns whether the lease has not expired. If the request is later than `now`, it is from another
    /// boot.
    pub(super) fn is_unexpired(&self, now: HostInstant) -> bool {
        self.asked_at <= now && now < self.expires
    }

    pub(super) fn is_of(&self, owner: &Owner) -> bool {
        self.epoch != 0 && self.nonce == owner.nonce && self.request == owner.request
    }

    pub(super) fn is_reserved_for(&self, waiter: i64) -> bool {
        self.epoch == 0 && self.reserved == waiter
    }
}

/// The answer whether the holders of a name admit another holder.
pub(super) enum Admission {
    /// They do, in the smallest free slot.
    Slot(u32),
    No,
    /// They do not: permits of another limit are held.
    OtherLimit(Error),
}

/// Returns whether the rows of a name, in the order of their slots, admit a holder in `mode`. All of them
/// have one mode. A reservation counts as a holder.
pub(super) fn admit(rows: &[LockRow], mode: Mode) -> Admission {
    let limit = match (rows.first().map(|row| row.mode), mode) {
        (None, _) => return Admission::Slot(0),
        (Some(Mode::Shared), Mode::Shared) => u32::MAX,
        (Some(Mode::Permit { limit: held }), Mode::Permit { limit }) if held != limit => {
            return Admission::OtherLimit(limit_mismatch(limit, held));
        }
        (Some(Mode::Permit { limit }), Mode::Permit { .. }) => limit,
        _ => return Admission::No,
    };
    let mut taken = rows.iter();
    let free = (0..limit).find(|slot| taken.next().is_none_or(|row| row.slot != *slot));
    free.map_or(Admission::No, Admission::Slot)
}

/// Reserves a slot for a waiter of a process for [`GRACE`](wait_queue::GRACE), and returns the row.
pub(super) fn reserve(
    session: &Session<'_>,
    key: Key<'_>,
    (mode, slot): (Mode, u32),
    (waiter, process): (i64, Process),
    now: HostInstant,
) -> rusqlite::Result<LockRow> {
    let expires = now + wait_queue::GRACE;
    let params = (
        key.namespace,
        key.name,
        key.permits,
        slot,
        stored_mode(mode),
        process.pid,
        signed(process.start),
        process.pid_scope.as_str(),
        nanos(now),
        nanos(expires),
        waiter,
    );
    session.change(RESERVE, params)?;
    Ok(LockRow {
        epoch: 0,
        holder: process,
        nonce: 0,
        request: 0,
        asked_at: now,
        expires,
        contended: true,
        reserved: waiter,
        mode,
        slot,
    })
}

/// Reads all rows of a name, in the order of their slots.
pub(super) fn read(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<Vec<LockRow>> {
    session.all(READ, (key.namespace, key.name, key.permits), lock_row)
}

/// Reads the columns pid, start and place of a row, from the column `first` on.
pub(super) fn process(row: &Row<'_>, first: usize) -> rusqlite::Result<Process> {
    Ok(Process {
        pid: row.get(first)?,
        start: row.get::<_, i64>(first + 1)?.cast_unsigned(),
        pid_scope: row.get(first + 2)?,
    })
}

/// Reads a row that begins with [`lock_columns`].
pub(super) fn lock_row(row: &Row<'_>) -> rusqlite::Result<LockRow> {
    Ok(LockRow {
        epoch: row.get::<_, i64>(0)?.cast_unsigned(),
        holder: process(row, 1)?,
        nonce: row.get::<_, i64>(4)?.cast_unsigned(),
        request: row.get::<_, i64>(5)?.cast_unsigned(),
        asked_at: instant(row.get(6)?),
        expires: instant(row.get(7)?),
        contended: row.get(8)?,
        reserved: row.get(9)?,
        mode: mode(row.get(10)?),
        slot: row.get(11)?,
    })
}

/// Makes the holders check for waiters when they release.
pub(super) fn mark_contended(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<()> {
    let params = (key.namespace, key.name, key.permits);
    session.change(MARK_CONTENDED, params).map(drop)
}

/// Removes the rows that are `over`, from the file and from `rows`. A waiter that did not use its
/// reservation in time counts as stale from then on.
pub(super) fn remove(
    session: &Session<'_>,
    key: Key<'_>,
    rows: &mut Vec<LockRow>,
    mut over: impl FnMut(&LockRow) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let mut kept = Vec::with_capacity(rows.len());
    for row in rows.drain(..) {
        if !over(&row)? {
            kept.push(row);
            continue;
        }
        let params = (key.namespace, key.name, key.permits, row.slot);
        session.change(REMOVE, params)?;
        if row.epoch == 0 {
            wait_queue::mark_stale(session, row.reserved)?;
        }
    }
    *rows = kept;
    Ok(())
}
