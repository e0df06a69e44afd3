//! The operators' commands: who holds what, forced release, and examination.

use std::collections::HashMap;

use lockkeeper_core::{
    Admin, Error, ErrorKind, Finding, HeldName, Holder, HostInstant, LockName, Mode,
};
use lockkeeper_sessions::SessionName;

use crate::connection::Row;
use crate::connection::login::PROGRAM;
use crate::names::{LockKey, namespace_mark, shown};
use crate::provider::Store;
use crate::statements::{MARKS, NAMESPACES, SessionId};

mod examine;

impl Admin for Store {
    fn held(&self, name: Option<&LockName>, deadline: HostInstant) -> Result<Vec<HeldName>, Error> {
        let namespace = &self.locks.namespace;
        let mark = namespace_mark(namespace);
        let key = |name: &LockName| LockKey::requested(namespace, name.as_str(), Mode::Exclusive);
        let wanted = name.map(key);
        let listed = self.listed(deadline)?.into_iter();
        let own = listed.filter(|lock| lock.namespace_mark == mark);
        let mut held: Vec<_> = match (name, wanted) {
            (Some(name), Some(wanted)) => own
                .filter(|lock| lock.key == wanted)
                .map(|lock| HeldName {
                    name: name.to_string(),
                    is_whole: true,
                    ..lock.held
                })
                .collect(),
            _ => own.map(|lock| lock.held).collect(),
        };
        held.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(held)
    }

    fn held_in_all_namespaces(
        &self,
        deadline: HostInstant,
    ) -> Result<Vec<(String, HeldName)>, Error> {
        let listed = self.listed(deadline)?.into_iter();
        let mut held: Vec<_> = listed.map(|lock| (lock.namespace, lock.held)).collect();
        held.sort_by(|(a, first), (b, second)| (a, &first.name).cmp(&(b, &second.name)));
        Ok(held)
    }

    fn force_release(&self, held: &HeldName, deadline: HostInstant) -> Result<bool, Error> {
        let (key, session) = read_mark(&held.mark).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidValue,
                "this hold was not shown by a PostgreSQL store; ask again who holds the name",
            )
        })?;
        self.locks.force_release(&key, session, deadline)
    }

    fn examine(&self, deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        self.locks.run_apart(deadline, |connection| {
            examine::examine(connection, &self.locks.options)
        })
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &[
            "since when it is held",
            "the token",
            "how long it is kept without a renewal",
            "the names and processes of other users' sessions, without pg_read_all_stats",
        ]
    }
}

/// A lock of the database that a session of lockkeeper holds.
struct HeldLock {
    key: LockKey,
    namespace_mark: i32,
    /// The namespace, as far as it is known.
    namespace: String,
    held: HeldName,
}

/// Returns all advisory locks of this database that sessions of lockkeeper hold or wait for. The columns are the
/// session's number, its mark, the hash of its namespace, the halves of the key, the mode, and whether the lock is
/// held. The others are what `pg_stat_activity` shows of the session to this user. The statement that shows the
/// names is in one row of each session: with thousands of locks, the reply would be too long otherwise.
fn list() -> String {
    format!(
        "WITH locks AS MATERIALIZED (SELECT pid, classid, objid, objsubid, mode, granted FROM pg_locks \
         WHERE locktype = 'advisory' \
         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())), \
         marks AS (SELECT pid, classid, objid FROM locks WHERE objsubid = 2) \
         SELECT pid, mark.objid, namespace.objid, locks.classid, locks.objid, locks.mode, granted, \
         host(client_addr), application_name, CASE row_number() OVER (PARTITION BY pid) WHEN 1 THEN query END \
         FROM locks JOIN marks AS mark USING (pid) JOIN marks AS namespace USING (pid) \
         LEFT JOIN pg_stat_activity USING (pid) \
         WHERE objsubid = 1 AND mark.classid = {MARKS} AND namespace.classid = {NAMESPACES}"
    )
}

impl Store {
    /// Returns the locks that are held in this database.
    fn listed(&self, deadline: HostInstant) -> Result<Vec<HeldLock>, Error> {
        let list = list();
        let rows = self
            .locks
            .run_apart(deadline, |connection| connection.execute(&list, &[]))?;
        let mut waiting: HashMap<LockKey, u64> = HashMap::new();
        for row in &rows {
            if let Some(key) = key(row)
                && !row.is_true(6)
            {
                *waiting.entry(key).or_default() += 1;
            }
        }
        let names = rows.iter().flat_map(names).collect();
        let granted = rows.iter().filter(|row| row.is_true(6));
        let locks = granted.filter_map(|row| lock(row, &waiting, &names));
        Ok(locks.collect())
    }
}

fn key(row: &Row) -> Option<LockKey> {
    let half = |at| row.number::<u32>(at).map(u64::from);
    Some(LockKey::of_number(half(3)? << 32 | half(4)?))
}

/// The namespaces and names that sessions show, each by the session and the key of the name. A session shows what it likes,
/// so its word counts only where it has the key.
type ShownKeys = HashMap<(i32, i64), (String, String)>;

/// Returns what the session of a row shows.
fn names(row: &Row) -> impl Iterator<Item = ((i32, i64), (String, String))> + use<> {
    let pid = row.number(0).unwrap_or(0);
    let shown = shown::decode(row.text(9).unwrap_or_default()).into_iter();
    shown.map(move |(namespace, name)| {
        let key = LockKey::requested(&namespace, &name, Mode::Exclusive);
        ((pid, key.number()), (namespace, name))
    })
}

/// Reads a row of [`list`].
fn lock(row: &Row, waiting: &HashMap<LockKey, u64>, names: &ShownKeys) -> Option<HeldLock> {
    let key = key(row)?;
    let mode = match row.text(5) {
        Some("ShareLock") => Mode::Shared,
        _ => Mode::Exclusive,
    };
    let half = |at| Some(row.number::<u32>(at)?.cast_signed());
    let (pid, mark, namespace_mark) = (row.number::<i32>(0)?, half(1)?, half(2)?);
    let known = names.get(&(pid, key.number())).cloned();
    let is_whole = known.is_some();
    let (namespace, name) = known.unwrap_or_else(|| {
        (
            format!("~{namespace_mark:08x}"),
            format!("~{:016x}", key.number()),
        )
    });
    let mut held = HeldName::new(name, format!("{} {pid} {mark}", key.number()));
    held.is_whole = is_whole;
    held.mode = mode;
    held.waiting = Some(waiting.get(&key).copied().unwrap_or(0));
    let program = row.text(8).and_then(|text| text.strip_prefix(PROGRAM));
    let (process, label) = match program.and_then(|program| program.split_once(' ')) {
        Some((process, label)) => (Some(process), Some(label.to_owned())),
        None => (program, None),
    };
    held.holder = Holder {
        host: row.text(7).map(str::to_owned),
        pid: process.and_then(|pid| pid.parse().ok()),
        label,
        session: Some(pid.to_string()),
        ..Holder::default()
    };
    Some(HeldLock {
        key,
        namespace_mark,
        namespace,
        held,
    })
}

/// Reads the mark of a held name: the key and the session.
fn read_mark(mark: &str) -> Option<(LockKey, SessionId)> {
    let mut parts = mark.split(' ');
    let key = LockKey::of_number(parts.next()?.parse().ok()?);
    let (pid, mark) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((key, SessionId { pid, mark }))
}
