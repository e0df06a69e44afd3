//! The leases of this process: the statements that grant, renew and end one.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::{
    AcquireRequest, Grant, HostInstant, LeaseId, LockName, epoch_at, process_label,
};
use rusqlite::Params;

use super::db::Session;
use super::holders::{Key, nanos, signed, stored_mode};
use super::process::Process;
use super::store::Store;

/// Builds the statement that inserts a grant. The epoch is the larger of the clock and the file's last
/// epoch + 1. So epochs also grow when the clock steps back, and when the file was deleted.
macro_rules! grant {
    ($verb:literal, $slot:literal, $contended:literal, $end:literal) => {
        concat!(
            $verb,
            " INTO lock (namespace, name, permits, slot, mode, epoch, pid, start, place, process, request, since, asked, expires, label, contended, reserved)
 VALUES (?1, ?2, ?3, ",
            $slot,
            ", ?5, max(?6, (SELECT epoch + 1 FROM lock WHERE namespace = '' AND name = '' AND permits = 0 AND slot = 0)),
 ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ",
            $contended,
            ", 0) ",
            $end,
            " RETURNING epoch, contended"
        )
    };
}
/// The slot of any row of the name conflicts with that row.
const TAKE_FREE: &str = grant!(
    "INSERT",
    "coalesce((SELECT slot FROM lock WHERE namespace = ?1 AND name = ?2 AND permits = ?3), ?4)",
    "0",
    "ON CONFLICT DO NOTHING"
);
const TAKE: &str = grant!(
    "INSERT OR REPLACE",
    "?4",
    "EXISTS (SELECT 1 FROM waiter WHERE namespace = ?1 AND name = ?2 AND permits = ?3)",
    ""
);
const LAST_EPOCH: &str =
    "SELECT epoch FROM lock WHERE namespace = '' AND name = '' AND permits = 0 AND slot = 0";
const RENEW: &str = "UPDATE lock SET asked = ?6, expires = ?7
 WHERE namespace = ?1 AND name = ?2 AND permits = ?3 AND slot = ?4 AND epoch = ?5 AND expires > ?6";
/// The row keeps where its process was, so that it ends with the boot of the host.
const DETACH: &str = "UPDATE lock SET asked = ?6, expires = ?7, pid = 0, start = 0
 WHERE namespace = ?1 AND name = ?2 AND permits = ?3 AND slot = ?4 AND epoch = ?5 AND expires > ?6
 RETURNING process, request";
const MINT: &str = "UPDATE lock SET epoch = max(?1, epoch + 1)
 WHERE namespace = '' AND name = '' AND permits = 0 AND slot = 0";
/// The larger epoch is what the former holder does not have.
const RESUME: &str = "UPDATE lock SET
 epoch = (SELECT epoch FROM lock WHERE namespace = '' AND name = '' AND permits = 0 AND slot = 0),
 pid = ?5, start = ?6, place = ?7, since = ?8, asked = ?9, expires = ?10, label = ?11
 WHERE namespace = ?1 AND name = ?2 AND permits = 0 AND process = ?3 AND request = ?4 AND epoch > 0
 AND asked <= ?9 AND expires > ?9
 RETURNING slot, epoch";
const RELEASE: &str = "DELETE FROM lock
 WHERE namespace = ?1 AND name = ?2 AND permits = ?3 AND slot = ?4 AND epoch = ?5
 AND contended = 0 AND expires > ?6";

/// A grant of a [`SqliteProvider`](super::SqliteProvider).
#[derive(Debug)]
pub struct SqliteLease {
    pub(super) name: LockName,
    pub(super) permits: bool,
    /// The slot of its row. The rows of shared leases have slots, too.
    slot: u32,
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
    leases: Arc<()>,
}

impl<'a> Acquisition<'a> {
    pub(super) fn new(store: &'a Store, request: &'a AcquireRequest<'a>) -> Self {
        Self {
            request,
            key: store.key(request.name(), request.mode().is_permit()),
            recover: request.is_retry(),
            leases: Arc::clone(&store.listener.leases),
        }
    }

    pub(super) fn grant(&self, slot: u32, epoch: u64, asked_at: HostInstant) -> Grant<SqliteLease> {
        let permits = self.key.permits;
        Grant {
            lease: SqliteLease {
                name: self.request.name().clone(),
                permits,
                slot,
                epoch,
                _counted: Arc::clone(&self.leases),
            },
            epoch,
            asked_at,
            slot: if permits { slot } else { 0 },
        }
    }
}

/// Inserts a grant. Returns it, and whether the name has waiters.
fn insert_grant(
    session: &Session<'_>,
    sql: &str,
    acquisition: &Acquisition<'_>,
    slot: u32,
    now: HostInstant,
) -> rusqlite::Result<Option<(Grant<SqliteLease>, bool)>> {
    let process = Process::own();
    let owner = acquisition.request.owner();
    let clock = SystemTime::now();
    let since = clock.duration_since(UNIX_EPOCH).unwrap_or_default();
    let params = (
        acquisition.key.namespace,
        acquisition.key.name,
        acquisition.key.permits,
        slot,
        stored_mode(acquisition.request.mode()),
        signed(
            acquisition
                .request
                .proposed_epoch()
                .unwrap_or_else(|| epoch_at(clock)),
        ),
        process.pid,
        signed(process.start),
        process.pid_scope.as_str(),
        signed(owner.nonce),
        signed(owner.request),
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        nanos(now),
        nanos(now + acquisition.request.ttl()),
        process_label(),
    );
    let granted = session.first(sql, params, |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))?;
    Ok(granted.map(|(epoch, contended)| {
        let grant = acquisition.grant(slot, epoch.cast_unsigned(), now);
        (grant, contended)
    }))
}

/// Returns the last epoch of the file.
pub(super) fn last_epoch(session: &Session<'_>) -> rusqlite::Result<u64> {
    let last = session.first(LAST_EPOCH, (), |row| row.get::<_, i64>(0))?;
    Ok(last.unwrap_or_default().cast_unsigned())
}

/// Grants a name that has no row, in one statement. Returns `None` if the name has a row, or if the request
/// proposes an epoch, which only an [attempt](super::attempt::attempt) compares with the last one.
pub(super) fn take_if_free(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    now: HostInstant,
) -> rusqlite::Result<Option<Grant<SqliteLease>>> {
    if acquisition.request.proposed_epoch().is_some() {
        return Ok(None);
    }
    let granted = insert_grant(session, TAKE_FREE, acquisition, 0, now)?;
    Ok(granted.map(|(grant, _)| grant))
}

/// Grants a slot, and replaces its row. Returns the grant, and whether the name has waiters.
pub(super) fn take(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    slot: u32,
    now: HostInstant,
) -> rusqlite::Result<(Grant<SqliteLease>, bool)> {
    let granted = insert_grant(session, TAKE, acquisition, slot, now)?;
    granted.ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// Returns the parameters of [`RENEW`] and [`DETACH`].
fn extension<'a>(
    key: Key<'a>,
    lease: &SqliteLease,
    now: HostInstant,
    ttl: Duration,
) -> impl Params + use<'a> {
    (
        key.namespace,
        key.name,
        key.permits,
        lease.slot,
        signed(lease.epoch),
        nanos(now),
        nanos(now + ttl),
    )
}

/// Renews a lease in one statement. Returns `false` if it has expired or was replaced.
pub(super) fn renew(
    session: &Session<'_>,
    key: Key<'_>,
    lease: &SqliteLease,
    now: HostInstant,
    ttl: Duration,
) -> rusqlite::Result<bool> {
    Ok(session.change(RENEW, extension(key, lease, now, ttl))? > 0)
}

/// Extends a lease that no process has from then on. `None` if it has expired or was replaced.
pub(super) fn detach(
    session: &Session<'_>,
    key: Key<'_>,
    lease: &SqliteLease,
    now: HostInstant,
    ttl: Duration,
) -> rusqlite::Result<Option<LeaseId>> {
    session.first(DETACH, extension(key, lease, now, ttl), |row| {
        Ok(LeaseId {
            nonce: row.get::<_, i64>(0)?.cast_unsigned(),
            request: row.get::<_, i64>(1)?.cast_unsigned(),
        })
    })
}

/// Gives the lease of a ticket to this process, in a write transaction. `None` if it has ended.
pub(super) fn resume(
    session: &Session<'_>,
    acquisition: &Acquisition<'_>,
    now: HostInstant,
) -> rusqlite::Result<Option<Grant<SqliteLease>>> {
    let (process, request) = (Process::own(), acquisition.request);
    let (owner, clock) = (request.owner(), SystemTime::now());
    let since = clock.duration_since(UNIX_EPOCH).unwrap_or_default();
    session.change(MINT, (signed(epoch_at(clock)),))?;
    let params = (
        acquisition.key.namespace,
        acquisition.key.name,
        signed(owner.nonce),
        signed(owner.request),
        process.pid,
        signed(process.start),
        process.pid_scope.as_str(),
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        nanos(now),
        nanos(now + request.ttl()),
        process_label(),
    );
    session.first(RESUME, params, |row| {
        let (slot, epoch) = (row.get(0)?, row.get::<_, i64>(1)?);
        Ok(acquisition.grant(slot, epoch.cast_unsigned(), now))
    })
}

/// Ends a lease of a name without waiters in one statement. Returns `false` if the name has waiters, or
/// the lease has expired or was replaced.
pub(super) fn release_uncontended(
    session: &Session<'_>,
    key: Key<'_>,
    lease: &SqliteLease,
    now: HostInstant,
) -> rusqlite::Result<bool> {
    let (slot, epoch) = (lease.slot, signed(lease.epoch));
    let params = (
        key.namespace,
        key.name,
        key.permits,
        slot,
        epoch,
        nanos(now),
    );
    Ok(session.change(RELEASE, params)? > 0)
}
