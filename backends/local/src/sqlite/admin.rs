//! The admin interface: reads the locks of all processes from the file.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{Admin, Error, Finding, HeldName, Holder, HostInstant, LockName};
use rusqlite::Row;

use super::db::{Patience, Session, unknown};
use super::open;
use super::process::Process;
use super::store::Store;
use super::wait_queue::{self, Key, LockRow, NextHolder};

const HELD: &str =
    "SELECT epoch, pid, start, place, process, request, asked, expires, contended, reserved, name, since
 FROM lock WHERE namespace = ?1 AND name <> '' AND (?2 IS NULL OR name = ?2) AND epoch > 0 ORDER BY name";
const WAITING: &str = "SELECT pid, start, place FROM waiter WHERE namespace = ?1 AND name = ?2";
const JOURNAL: &str = "PRAGMA journal_mode";
const CHECK: &str = "PRAGMA quick_check(1)";
/// Below this free space in bytes, a warning is reported.
const MIN_FREE: u64 = 16 << 20;

/// A held name, with the columns for people.
struct HeldRow {
    lock: LockRow,
    name: String,
    since: i64,
}

fn held_row(row: &Row<'_>) -> rusqlite::Result<HeldRow> {
    Ok(HeldRow {
        lock: wait_queue::held(row)?,
        name: row.get(10)?,
        since: row.get(11)?,
    })
}

/// Counts the living waiters of a name. Dead waiters stay in the queue until the next release.
fn waiting(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<u64> {
    let waiters = session.all(WAITING, (key.namespace, key.name), |row| {
        wait_queue::process(row, 0)
    })?;
    let living = waiters.iter().filter(|waiter| !waiter.is_dead()).count();
    Ok(u64::try_from(living).unwrap_or(u64::MAX))
}

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let patience = Patience::new(&*self.clock, Some(deadline));
        let only = name.map(LockName::as_str);
        self.db.run(&patience, |session| {
            let mut live = session.all(HELD, (self.namespace.as_str(), only), held_row)?;
            // Read after the rows: a request later than `now` would count as from another boot.
            let now = self.clock.now();
            live.retain(|row| row.lock.is_live(now));
            let describe = |row: HeldRow| {
                let key = Key {
                    namespace: &self.namespace,
                    name: &row.name,
                };
                Ok(HeldName {
                    waiting: Some(waiting(session, key)?),
                    holder: holder(&row),
                    epoch: Some(row.lock.epoch),
                    remaining: Some(row.lock.expires.saturating_since(now)),
                    ..HeldName::new(row.name, row.lock.epoch.to_string())
                })
            };
            live.into_iter().map(describe).collect()
        })
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let patience = Patience::new(&*self.clock, Some(deadline));
        let name = LockName::new(held.name.as_str())?;
        let key = self.key(&name);
        let ended = self.db.transact(&patience, |session| {
            let now = self.clock.now();
            match wait_queue::read(session, key)? {
                Some(found) if found.epoch != 0 && found.epoch.to_string() == held.mark => Ok((
                    found.is_live(now),
                    wait_queue::release_to_next_waiter(session, key, now)?,
                )),
                _ => Ok((false, NextHolder::None)),
            }
        });
        let (ended, next) = ended.map_err(unknown)?;
        self.notify_next(key, next, &patience);
        Ok(ended)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        let patience = Patience::new(&*self.clock, Some(deadline));
        let (journal, check) = self.db.run(&patience, |session| {
            let text = |row: &Row<'_>| row.get::<_, String>(0);
            Ok((
                session.first(JOURNAL, (), text)?.unwrap_or_default(),
                session.first(CHECK, (), text)?.unwrap_or_default(),
            ))
        })?;
        let mut findings = vec![
            Finding::fine("version", format!("SQLite {}", rusqlite::version())),
            journal_mode(&journal),
            integrity(&check),
            dead_owners(),
        ];
        findings.extend(open::examine(self.db.path()));
        findings.extend(disk_space(self.db.path()));
        Ok(findings)
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &["the holder's thread"]
    }
}

fn holder(row: &HeldRow) -> Holder {
    let since = u64::try_from(row.since).unwrap_or(0);
    Holder {
        // Processes of another container have another host name.
        host: Process::own()
            .shares_pid_scope(&row.lock.holder)
            .then(hostname)
            .flatten(),
        pid: Some(row.lock.holder.pid),
        since: UNIX_EPOCH.checked_add(Duration::from_millis(since)),
        ..Holder::default()
    }
}

#[cfg(unix)]
fn hostname() -> Option<String> {
    let name = rustix::system::uname();
    Some(name.nodename().to_string_lossy().into_owned())
}

#[cfg(not(unix))]
fn hostname() -> Option<String> {
    std::env::var("COMPUTERNAME").ok()
}

fn journal_mode(journal: &str) -> Finding {
    let topic = "journal mode";
    if journal == "wal" {
        return Finding::fine(topic, "the journal mode is wal");
    }
    Finding::unusable(
        topic,
        format!("the journal mode is {journal}, and not wal"),
        "another program changed it, and readers and writers block each other",
        "stop the programs that use the file, and open it again",
    )
}

fn integrity(check: &str) -> Finding {
    let topic = "file";
    if check == "ok" {
        return Finding::fine(topic, "the file is an intact database");
    }
    Finding::unusable(
        topic,
        format!(
            "the file is damaged: {}",
            check.lines().next().unwrap_or_default()
        ),
        "locks in it can be forgotten or granted twice",
        "stop the programs that use it and delete it; it holds nothing but locks",
    )
}

fn dead_owners() -> Finding {
    let topic = "dead holders";
    if Process::can_judge() {
        return Finding::fine(topic, "a dead holder's lock is taken over at once");
    }
    Finding::warning(
        topic,
        "this system does not say which process has ended",
        "a dead holder's lock is free only after its ttl",
        "mount this process's own /proc, or keep the ttl short",
    )
}

#[cfg(unix)]
fn disk_space(path: &Path) -> Option<Finding> {
    let disk = rustix::fs::statvfs(path).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let mib = free >> 20;
    Some(if free >= MIN_FREE {
        Finding::fine("disk", format!("{mib} MiB are free on its disk"))
    } else {
        Finding::warning(
            "disk",
            format!("only {mib} MiB are free on its disk"),
            "when the disk is full, no lock is granted or renewed",
            "free space there, or name a file on another disk",
        )
    })
}

#[cfg(not(unix))]
fn disk_space(_path: &Path) -> Option<Finding> {
    None
}
