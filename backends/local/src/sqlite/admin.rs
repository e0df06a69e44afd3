//! The admin interface: reads the locks of all processes from the file.
//!
//! `doctor` warns of files that every local user may read. A read lock on the byte of the `-shm` that SQLite's
//! writers lock keeps all names from being granted.

use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{Admin, Error, Finding, HeldName, Holder, HostInstant, LockName, host_name};
use rusqlite::{Params, Row};

use super::db::Session;
use super::error::unknown;
use super::examine;
use super::holders::{self, Key, LockRow};
use super::process::{KnownProcesses, Process};
use super::retry::BusyRetry;
use super::store::Store;

/// Builds the statement that lists the held names of some namespaces.
macro_rules! held {
    ($of:literal) => {
        concat!(
            "SELECT ",
            holders::lock_columns!(),
            ", namespace, name, since, label FROM lock WHERE ",
            $of,
            " AND name <> '' AND epoch > 0 ORDER BY namespace, name, permits, slot"
        )
    };
}
const HELD: &str = held!("namespace = ?1 AND (?2 IS NULL OR name = ?2)");
const HELD_ANYWHERE: &str = held!("true");
const WAITING: &str = "SELECT pid, start, place FROM waiter
 WHERE namespace = ?1 AND name = ?2 AND permits = ?3";

/// A held name, with the columns for people.
struct HeldRow {
    lock: LockRow,
    namespace: String,
    name: String,
    since: i64,
    label: Option<String>,
}

fn held_row(row: &Row<'_>) -> rusqlite::Result<HeldRow> {
    Ok(HeldRow {
        lock: holders::lock_row(row)?,
        namespace: row.get(12)?,
        name: row.get(13)?,
        since: row.get(14)?,
        label: row.get(15)?,
    })
}

/// Counts the living waiters of a name. Dead waiters stay in the queue until the next release.
fn waiting(
    session: &Session<'_>,
    key: Key<'_>,
    processes: &mut KnownProcesses,
) -> rusqlite::Result<u64> {
    let params = (key.namespace, key.name, key.permits);
    let waiters = session.all(WAITING, params, |row| holders::process(row, 0))?;
    let living = waiters.iter().filter(|it| !processes.is_dead(it)).count();
    Ok(u64::try_from(living).unwrap_or(u64::MAX))
}

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let only = name.map(LockName::as_str);
        let held = self.list(HELD, (self.namespace.as_str(), only), deadline)?;
        Ok(held.into_iter().map(|(_, held)| held).collect())
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        self.list(HELD_ANYWHERE, (), deadline)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let retry = BusyRetry::new(&*self.clock, deadline);
        let name = LockName::new(held.name.as_str())?;
        let key = self.key(&name, held.mode.is_permit());
        let is_ended = self
            .end_hold(key, |found| found.epoch.to_string() == held.mark, &retry)
            .map_err(unknown)?;
        if let (true, Some(pid)) = (is_ended, held.holder.pid) {
            self.parkers.notify_holder(pid);
        }
        Ok(is_ended)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        examine::examine(&self.db, &BusyRetry::new(&*self.clock, deadline))
    }
}

impl Store {
    /// Returns the live holds of a statement's rows, each with its namespace.
    fn list(
        &self,
        sql: &str,
        params: impl Params + Copy,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let retry = BusyRetry::new(&*self.clock, deadline);
        self.db.run(&retry, |session| {
            let mut live = session.all(sql, params, held_row)?;
            // Read after the rows: a request later than `now` would count as from another boot.
            let now = self.clock.now();
            let mut processes = KnownProcesses::default();
            live.retain(|row| row.lock.is_unexpired(now) && !processes.is_dead(&row.lock.holder));
            let describe = |row: HeldRow| {
                let (mode, is_permit) = (row.lock.mode, row.lock.mode.is_permit());
                let key = Key {
                    namespace: &row.namespace,
                    name: &row.name,
                    permits: is_permit,
                };
                let held = HeldName {
                    mode,
                    slot: is_permit.then_some(row.lock.slot),
                    waiting: Some(waiting(session, key, &mut processes)?),
                    holder: holder(&row),
                    epoch: Some(row.lock.epoch),
                    remaining: Some(row.lock.expires.saturating_since(now)),
                    ..HeldName::new(row.name, row.lock.epoch.to_string())
                };
                Ok((row.namespace, held))
            };
            live.into_iter().map(describe).collect()
        })
    }
}

fn holder(row: &HeldRow) -> Holder {
    let since = u64::try_from(row.since).unwrap_or(0);
    Holder {
        // Processes of another container have another host name.
        host: Process::own()
            .shares_pid_scope(&row.lock.holder)
            .then(|| host_name().to_owned()),
        // No process has a lease that was detached.
        pid: (!row.lock.holder.is_none()).then_some(row.lock.holder.pid),
        since: UNIX_EPOCH.checked_add(Duration::from_millis(since)),
        label: row.label.clone(),
        ..Holder::default()
    }
}
