//! The statements that grant, renew and end a hold and manage its queue of waiters. Those of more than
//! one statement run in a write transaction.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{AcquireRequest, Grant, HostInstant, LockName, Owner, epoch_at};
use rusqlite::Row;

use super::db::Session;
use super::process::Process;
use super::store::Store;

/// How long a name is reserved for a notified waiter before the next waiter gets it.
pub(super) const GRACE: Duration = Duration::from_millis(100);

/// The columns that [`lock_row`] reads, in its order.
macro_rules! lock_columns {
    () => {
        "epoch, pid, start, place, process, request, asked, expires, contended, reserved"
    };
}
pub(super) use lock_columns;

/// Builds the statement that inserts a grant. The epoch is the larger of the clock and the file's last
/// epoch + 1, so epochs grow when the clock steps back and when the file was deleted.
macro_rules! grant {
    ($verb:literal, $contended:literal, $end:literal) => {
        concat!(
            $verb,
            " INTO lock (namespace, name, epoch, pid, start, place, process, request, since, asked, expires, contended, reserved)
 VALUES (?1, ?2, max(?3, (SELECT epoch + 1 FROM lock WHERE namespace = '' AND name = '')),
 ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ",
            $contended,
            ", 0) ",
            $end,
            " RETURNING epoch"
        )
    };
}
const TAKE_FREE: &str = grant!("INSERT", "0", "ON CONFLICT DO NOTHING");
const TAKE: &str = grant!(
    "INSERT OR REPLACE",
    "EXISTS (SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2)",
    ""
);
const RENEW: &str = "UPDATE lock SET asked = ?4, expires = ?5
 WHERE namespace = ?1 AND name = ?2 AND epoch = ?3 AND expires > ?4";
const RELEASE: &str = "DELETE FROM lock
 WHERE namespace = ?1 AND name = ?2 AND epoch = ?3 AND contended = 0 AND expires > ?4";
const READ: &str = concat!(
    "SELECT ",
    lock_columns!(),
    " FROM lock WHERE namespace = ?1 AND name = ?2"
);
const FREE: &str = "DELETE FROM lock WHERE namespace = ?1 AND name = ?2";
const MARK_CONTENDED: &str = "UPDATE lock SET contended = 1 WHERE namespace = ?1 AND name = ?2";
const RESERVE: &str = "UPDATE lock SET epoch = 0, reserved = ?3, pid = ?4, start = ?5, place = ?6,
 process = 0, request = 0, asked = ?7, expires = ?8, contended = 1 WHERE namespace = ?1 AND name = ?2";
const ENQUEUE: &str = "INSERT INTO waiter (namespace, name, pid, start, place, wake, stale)
 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0)";
const STALE: &str = "SELECT stale FROM waiter WHERE id = ?1";
const SET_STALE: &str = "UPDATE waiter SET stale = ?2 WHERE id = ?1";
const DEQUEUE: &str = "DELETE FROM waiter WHERE id = ?1";
const FIRST: &str = "SELECT id, pid, start, place, wake, stale FROM waiter
 WHERE namespace = ?1 AND name = ?2 ORDER BY stale, id LIMIT 1";
const COUNT_AHEAD: &str = "SELECT count(*) FROM (SELECT 1 FROM waiter
 WHERE namespace = ?1 AND name = ?2 AND stale = 0 AND id < ?3 LIMIT 2)";

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

/// A name in its namespace.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// A grant of a [`SqliteProvider`](super::SqliteProvider).
#[derive(Debug)]
pub struct SqliteLease {
    pub(super) name: LockName,
    pub(super) epoch: u64,
    /// Counts the leases of this process.
    _counted: Arc<()>,
}

/// The parameters of an acquisition.
pub(super) struct Acquisition<'a> {
    pub(super) request: &'a AcquireRequest<'a>,
    pub(super) key: Key<'a>,
    /// Whether an earlier attempt of this request may have been granted.
    pub(super) recover: bool,
    /// Each lease gets a clone.
    pub(super) leases: &'a Arc<()>,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(store: &'a Store, request: &'a AcquireRequest<'a>) -> Self {
        Self {
            request,
            key: store.key(request.name()),
            recover: request.is_retry(),
            leases: &store.listener.leases,
        }
    }

    pub(super) fn grant(&self, epoch: u64, asked_at: HostInstant) -> Grant<SqliteLease> {
        Grant {
            lease: SqliteLease {
                name: self.request.name().clone(),
                epoch,
                _counted: Arc::clone(self.leases),
            },
            epoch,
            asked_at,
            slot: 0,
        }
    }
}

/// The row of a name that is held or reserved.
pub(super) struct LockRow {
    /// 0 if the name is reserved for a waiter.
    pub(super) epoch: u64,
    pub(super) holder: Process,
    pub(super) nonce: u64,
    pub(super) request: u64,
    pub(super) asked_at: HostInstant,
    pub(super) expires: HostInstant,
    pub(super) contended: bool,
    pub(super) reserved: i64,
}

impl LockRow {
    /// Returns whether the lease has not expired and its process lives.
    pub(super) fn is_live(&self, now: HostInstant) -> bool {
        self.is_unexpired(now) && !self.holder.is_dead()
    }

    /// Returns whether the lease has not expired. A request later than `now` is from another boot.
    pub(super) fn is_unexpired(&self, now: HostInstant) -> bool {
        self.asked_at <= now && now < self.expires
    }

    pub(super) fn is_of(&self, owner: &Owner) -> bool {
        self.epoch != 0 && self.nonce == owner.nonce && self.request == owner.request
    }
}

/// The process that gets a name next.
pub(super) enum NextHolder {
    /// No waiter.
    None,
    /// Only waiters that did not respond to an earlier notification are left. They are notified, and the
    /// name is not reserved for them.
    Unresponsive { id: i64, wake: String },
    /// The caller.
    Caller,
    /// The waiter for which the name is reserved.
    Reserved { id: i64, wake: String },
}

fn insert_grant(
    session: &Session<'_>,
    sql: &str,
    acquisition: &Acquisition<'_>,
    now: HostInstant,
) -> rusqlite::Result<Option<Grant<SqliteLease>>> {
    let process = Process::own();
    let owner = acquisition.request.owner();
    let clock = SystemTime::now();
    let since = clock.duration_since(UNIX_EPOCH).unwrap_or_default();
    let params = (
        acquisition.key.namespace,
        acquisition.key.name,
        signed(epoch_at(clock)),
        process.pid,
        signed(process.start),
        process.pid_scope.as_str(),
        signed(owner.nonce),
        signed(owner.request),
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        nanos(now),
        nanos(now + acquisition.request.ttl()),
    );
    let epoch = session.first(sql, params, |row| row.get::<_, i64>(0))?;
    Ok(epoch.map(|epoch| acquisition.grant(epoch.cast_unsigned(), now)))
}

/// Grants a name that has no row, in one statement. Returns `None` if the name has a row.
pub(super) fn take_if_free(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    now: HostInstant,
) -> rusqlite::Result<Option<Grant<SqliteLease>>> {
    insert_grant(session, TAKE_FREE, acquisition, now)
}

/// Grants a name, and replaces its row.
pub(super) fn take(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    now: HostInstant,
) -> rusqlite::Result<Grant<SqliteLease>> {
    insert_grant(session, TAKE, acquisition, now)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Renews a lease in one statement. Returns `false` if it has expired or was replaced.
pub(super) fn renew(
    session: &Session<'_>,
    key: Key<'_>,
    epoch: u64,
    now: HostInstant,
    ttl: Duration,
) -> rusqlite::Result<bool> {
    let times = (nanos(now), nanos(now + ttl));
    let params = (key.namespace, key.name, signed(epoch), times.0, times.1);
    Ok(session.change(RENEW, params)? > 0)
}

/// Frees a name without waiters in one statement. Returns `false` if it has waiters, or its lease has
/// expired or was replaced.
pub(super) fn release_uncontended(
    session: &Session<'_>,
    key: Key<'_>,
    epoch: u64,
    now: HostInstant,
) -> rusqlite::Result<bool> {
    let params = (key.namespace, key.name, signed(epoch), nanos(now));
    Ok(session.change(RELEASE, params)? > 0)
}

pub(super) fn read(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<Option<LockRow>> {
    session.first(READ, (key.namespace, key.name), lock_row)
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
    })
}

/// Makes the holder check for waiters when it releases.
pub(super) fn mark_contended(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<()> {
    session
        .change(MARK_CONTENDED, (key.namespace, key.name))
        .map(drop)
}

/// Adds a waiter of this process to the queue of a name, and returns its id.
pub(super) fn enqueue(session: &Session<'_>, key: Key<'_>, wake: &str) -> rusqlite::Result<i64> {
    let process = Process::own();
    let params = (
        key.namespace,
        key.name,
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
    let count = session.first(COUNT_AHEAD, (key.namespace, key.name, id), |row| row.get(0))?;
    Ok(count.unwrap_or(0))
}

/// Finds the first living waiter for a name without a holder, and reserves the name for it. Removes
/// dead waiters ahead of it.
pub(super) fn reserve_next(
    session: &Session<'_>,
    key: Key<'_>,
    caller: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<NextHolder> {
    loop {
        let found = session.first(FIRST, (key.namespace, key.name), |row| {
            Ok((
                row.get::<_, i64>(0)?,
                process(row, 1)?,
                row.get::<_, String>(4)?,
                row.get::<_, bool>(5)?,
            ))
        })?;
        let Some((id, process, wake, stale)) = found else {
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
        let params = (
            key.namespace,
            key.name,
            id,
            process.pid,
            signed(process.start),
            process.pid_scope.as_str(),
            nanos(now),
            nanos(now + GRACE),
        );
        session.change(RESERVE, params)?;
        return Ok(NextHolder::Reserved { id, wake });
    }
}

/// Reserves a name for the next waiter, or frees the name if there is none.
pub(super) fn release_to_next_waiter(
    session: &Session<'_>,
    key: Key<'_>,
    now: HostInstant,
) -> rusqlite::Result<NextHolder> {
    let next = reserve_next(session, key, None, now)?;
    if !matches!(next, NextHolder::Reserved { .. }) {
        session.change(FREE, (key.namespace, key.name))?;
    }
    Ok(next)
}
