//! The statements that grant a name and keep its line of waiters. All but [`take_free`] run inside
//! a write transaction.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{HostInstant, Owner};
use rusqlite::Row;

use super::db::Session;
use super::process::Process;

/// How long a name is kept for the waiter that was woken, before the next one gets it.
pub(super) const GRACE: Duration = Duration::from_millis(100);

/// A grant is one row; its epoch follows both the clock and the file's last one, so it grows when
/// the clock steps back and when the file was deleted.
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
const READ: &str =
    "SELECT epoch, pid, start, place, process, request, asked, expires, contended, reserved
 FROM lock WHERE namespace = ?1 AND name = ?2";
const FREE: &str = "DELETE FROM lock WHERE namespace = ?1 AND name = ?2";
const CONTEND: &str = "UPDATE lock SET contended = 1 WHERE namespace = ?1 AND name = ?2";
const RESERVE: &str = "UPDATE lock SET epoch = 0, reserved = ?3, pid = ?4, start = ?5, place = ?6,
 process = 0, request = 0, asked = ?7, expires = ?8, contended = 1 WHERE namespace = ?1 AND name = ?2";
const JOIN: &str = "INSERT INTO waiter (namespace, name, pid, start, place, wake, stale)
 VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0)";
const STALE: &str = "SELECT stale FROM waiter WHERE id = ?1";
const SET_STALE: &str = "UPDATE waiter SET stale = ?2 WHERE id = ?1";
const LEAVE: &str = "DELETE FROM waiter WHERE id = ?1";
const NEXT: &str = "SELECT id, pid, start, place, wake, stale FROM waiter
 WHERE namespace = ?1 AND name = ?2 ORDER BY stale, id LIMIT 1";
const BEFORE: &str = "SELECT count(*) FROM (SELECT 1 FROM waiter
 WHERE namespace = ?1 AND name = ?2 AND stale = 0 AND id < ?3 LIMIT 2)";

/// SQLite's integers are signed. Numbers that only need to come back as they went in wrap around.
pub(super) fn signed(number: u64) -> i64 {
    number.cast_signed()
}

/// A moment as it is stored; the end of time is the largest there is.
pub(super) fn nanos(moment: HostInstant) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

fn moment(nanos: i64) -> HostInstant {
    match nanos {
        i64::MAX => HostInstant::NEVER,
        nanos => HostInstant::from_nanos(u64::try_from(nanos).unwrap_or(0)),
    }
}

/// One name, as its statements need it.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Who asks for how long.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) key: Key<'a>,
    pub(super) owner: Owner,
    pub(super) ttl: Duration,
    /// Whether an earlier try of this request may have been granted.
    pub(super) recover: bool,
}

/// A lock's row.
pub(super) struct Held {
    /// 0: kept for a waiter.
    pub(super) epoch: u64,
    pub(super) by: Process,
    pub(super) process: u64,
    pub(super) request: u64,
    pub(super) asked: HostInstant,
    pub(super) expires: HostInstant,
    pub(super) contended: bool,
    pub(super) reserved: i64,
}

impl Held {
    /// Whether it is still in its time, and its process there.
    pub(super) fn is_live(&self, now: HostInstant) -> bool {
        self.is_in_time(now) && !self.by.is_dead()
    }

    /// Whether it has not run out. A moment before it was asked for is one of another boot.
    pub(super) fn is_in_time(&self, now: HostInstant) -> bool {
        self.asked <= now && now < self.expires
    }

    pub(super) fn is_of(&self, owner: &Owner) -> bool {
        self.epoch != 0 && self.process == owner.nonce && self.request == owner.request
    }
}

/// Whose turn a free name is.
pub(super) enum Next {
    /// Nobody's.
    Nobody,
    /// Only of waiters that were woken before and did not come: they are told, nothing more.
    Late { id: i64, wake: String },
    /// The one that asks.
    Me,
    /// The name is kept for this one.
    Kept { id: i64, wake: String },
}

fn grant(
    session: &Session<'_>,
    sql: &str,
    ask: &Ask<'_>,
    now: HostInstant,
) -> rusqlite::Result<Option<u64>> {
    let process = Process::own();
    let unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let micros = i64::try_from(unix.as_micros()).unwrap_or(i64::MAX);
    let params = (
        ask.key.namespace,
        ask.key.name,
        micros,
        process.pid,
        signed(process.start),
        process.place.as_str(),
        signed(ask.owner.nonce),
        signed(ask.owner.request),
        micros / 1000,
        nanos(now),
        nanos(now + ask.ttl),
    );
    session.first(sql, params, |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))
}

/// Takes a name that has no row, in one statement. `None`: it has one.
pub(super) fn take_free(
    session: &Session<'_>,
    ask: &Ask<'_>,
    now: HostInstant,
) -> rusqlite::Result<Option<u64>> {
    grant(session, TAKE_FREE, ask, now)
}

/// Takes a name, whatever its row says.
pub(super) fn take(
    session: &Session<'_>,
    ask: &Ask<'_>,
    now: HostInstant,
) -> rusqlite::Result<u64> {
    grant(session, TAKE, ask, now)?.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

pub(super) fn read(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<Option<Held>> {
    session.first(READ, (key.namespace, key.name), held)
}

/// The columns pid, start and place of a row, from `first` on.
pub(super) fn process(row: &Row<'_>, first: usize) -> rusqlite::Result<Process> {
    Ok(Process {
        pid: row.get(first)?,
        start: row.get::<_, i64>(first + 1)?.cast_unsigned(),
        place: row.get(first + 2)?,
    })
}

/// A row that begins with the columns of [`READ`].
pub(super) fn held(row: &Row<'_>) -> rusqlite::Result<Held> {
    Ok(Held {
        epoch: row.get::<_, i64>(0)?.cast_unsigned(),
        by: process(row, 1)?,
        process: row.get::<_, i64>(4)?.cast_unsigned(),
        request: row.get::<_, i64>(5)?.cast_unsigned(),
        asked: moment(row.get(6)?),
        expires: moment(row.get(7)?),
        contended: row.get(8)?,
        reserved: row.get(9)?,
    })
}

/// Tells the holder to look for waiters when it releases.
pub(super) fn contend(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<()> {
    session.change(CONTEND, (key.namespace, key.name)).map(drop)
}

/// Enters this process into the name's line.
pub(super) fn join(session: &Session<'_>, key: Key<'_>, wake: &str) -> rusqlite::Result<i64> {
    let process = Process::own();
    let params = (
        key.namespace,
        key.name,
        process.pid,
        signed(process.start),
        process.place.as_str(),
        wake,
    );
    session.change(JOIN, params)?;
    Ok(session.last_id())
}

/// Shows that a waiter is there. False: its row is gone.
pub(super) fn show_up(session: &Session<'_>, id: i64) -> rusqlite::Result<bool> {
    let stale = session.first(STALE, (id,), |row| row.get::<_, bool>(0))?;
    if stale == Some(true) {
        session.change(SET_STALE, (id, false))?;
    }
    Ok(stale.is_some())
}

/// Passes a waiter over until it shows up again; it keeps its place.
pub(super) fn pass_over(session: &Session<'_>, id: i64) -> rusqlite::Result<()> {
    session.change(SET_STALE, (id, true)).map(drop)
}

pub(super) fn is_in_line(session: &Session<'_>, id: i64) -> rusqlite::Result<bool> {
    Ok(session.first(STALE, (id,), |_| Ok(()))?.is_some())
}

pub(super) fn leave(session: &Session<'_>, id: i64) -> rusqlite::Result<()> {
    session.change(LEAVE, (id,)).map(drop)
}

/// How many stand before a waiter: 0, 1, or 2 for more.
pub(super) fn before(session: &Session<'_>, key: Key<'_>, id: i64) -> rusqlite::Result<u32> {
    let count = session.first(BEFORE, (key.namespace, key.name, id), |row| row.get(0))?;
    Ok(count.unwrap_or(0))
}

/// Finds the first living waiter for a name that nobody holds any more, and keeps the name for it.
/// The dead ones on the way are removed.
pub(super) fn next(
    session: &Session<'_>,
    key: Key<'_>,
    me: Option<i64>,
    now: HostInstant,
) -> rusqlite::Result<Next> {
    loop {
        let found = session.first(NEXT, (key.namespace, key.name), |row| {
            Ok((
                row.get::<_, i64>(0)?,
                process(row, 1)?,
                row.get::<_, String>(4)?,
                row.get::<_, bool>(5)?,
            ))
        })?;
        let Some((id, process, wake, stale)) = found else {
            return Ok(Next::Nobody);
        };
        if me == Some(id) {
            return Ok(Next::Me);
        }
        if process.is_dead() {
            leave(session, id)?;
            continue;
        }
        if stale {
            return Ok(Next::Late { id, wake });
        }
        let params = (
            key.namespace,
            key.name,
            id,
            process.pid,
            signed(process.start),
            process.place.as_str(),
            nanos(now),
            nanos(now + GRACE),
        );
        session.change(RESERVE, params)?;
        return Ok(Next::Kept { id, wake });
    }
}

/// Gives a name to the next in line, or frees it where there is none.
pub(super) fn pass_on(
    session: &Session<'_>,
    key: Key<'_>,
    now: HostInstant,
) -> rusqlite::Result<Next> {
    let next = next(session, key, None, now)?;
    if !matches!(next, Next::Kept { .. }) {
        session.change(FREE, (key.namespace, key.name))?;
    }
    Ok(next)
}
