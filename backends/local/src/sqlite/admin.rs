//! Answers from the file, for every process of the host.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use lockkeeper_core::{Admin, Error, Finding, HeldName, Holder, HostInstant, LockName};
use rusqlite::Row;

use super::db::{Patience, Session, unknown};
use super::line::{self, Held, Key, Next};
use super::open;
use super::process::Process;
use super::store::Store;

const HELD: &str =
    "SELECT epoch, pid, start, place, process, request, asked, expires, contended, reserved, name, since
 FROM lock WHERE namespace = ?1 AND name <> '' AND (?2 IS NULL OR name = ?2) AND epoch > 0 ORDER BY name";
const WAITING: &str = "SELECT pid, start, place FROM waiter WHERE namespace = ?1 AND name = ?2";
const JOURNAL: &str = "PRAGMA journal_mode";
const CHECK: &str = "PRAGMA quick_check(1)";
/// With less room than this on its disk, a lock database is soon unable to write.
const ROOM: u64 = 16 << 20;

struct Seen {
    held: Held,
    name: String,
    since: i64,
}

fn seen(row: &Row<'_>) -> rusqlite::Result<Seen> {
    Ok(Seen {
        held: line::held(row)?,
        name: row.get(10)?,
        since: row.get(11)?,
    })
}

/// How many living processes wait for a name: the dead ones stay in line until the next release.
fn waiting(session: &Session<'_>, key: Key<'_>) -> rusqlite::Result<u64> {
    let line = session.all(WAITING, (key.namespace, key.name), |row| {
        line::process(row, 0)
    })?;
    let living = line.iter().filter(|waiter| !waiter.is_dead()).count();
    Ok(u64::try_from(living).unwrap_or(u64::MAX))
}

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let patience = Patience::new(&*self.clock, Some(deadline));
        let only = name.map(LockName::as_str);
        self.db.run(&patience, |session| {
            let mut live = session.all(HELD, (self.namespace.as_str(), only), seen)?;
            // After the look: what was asked for later than now counts as of another boot.
            let now = self.clock.now();
            live.retain(|seen| seen.held.is_live(now));
            let tell = |seen: Seen| {
                let key = Key {
                    namespace: &self.namespace,
                    name: &seen.name,
                };
                Ok(HeldName {
                    waiting: Some(waiting(session, key)?),
                    holder: holder(&seen),
                    epoch: Some(seen.held.epoch),
                    remaining: Some(seen.held.expires.saturating_since(now)),
                    ..HeldName::new(seen.name, seen.held.epoch.to_string())
                })
            };
            live.into_iter().map(tell).collect()
        })
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let patience = Patience::new(&*self.clock, Some(deadline));
        let name = LockName::new(held.name.as_str())?;
        let key = self.key(&name);
        let ended = self.db.transact(&patience, |session| {
            let now = self.clock.now();
            match line::read(session, key)? {
                Some(found) if found.epoch != 0 && found.epoch.to_string() == held.mark => {
                    Ok((found.is_live(now), line::pass_on(session, key, now)?))
                }
                _ => Ok((false, Next::Nobody)),
            }
        });
        let (ended, next) = ended.map_err(unknown)?;
        self.ring(key, next, &patience);
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
            whole(&check),
            dead_owners(),
        ];
        findings.extend(open::examine(self.db.path()));
        findings.extend(room(self.db.path()));
        Ok(findings)
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &["the holder's thread"]
    }
}

fn holder(seen: &Seen) -> Holder {
    let since = u64::try_from(seen.since).unwrap_or(0);
    Holder {
        // All who use the file are of one host, though perhaps of several containers.
        host: Process::own()
            .is_neighbour(&seen.held.by)
            .then(hostname)
            .flatten(),
        pid: Some(seen.held.by.pid),
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
        "somebody has changed it; readers and writers get in each other's way",
        "stop the programs that use the file, and open it anew",
    )
}

fn whole(check: &str) -> Finding {
    let topic = "file";
    if check == "ok" {
        return Finding::fine(topic, "the file is a whole database");
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
fn room(path: &Path) -> Option<Finding> {
    let disk = rustix::fs::statvfs(path).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let mib = free >> 20;
    Some(if free >= ROOM {
        Finding::fine("disk", format!("{mib} MiB are free on its disk"))
    } else {
        Finding::warning(
            "disk",
            format!("only {mib} MiB are free on its disk"),
            "when it is full, nobody gets a lock or renews one",
            "make room there, or name a file on another disk",
        )
    })
}

#[cfg(not(unix))]
fn room(_path: &Path) -> Option<Finding> {
    None
}
