//! What `doctor` finds out about the file of a lock database.

use std::fs;
use std::path::Path;

use lockkeeper_core::{Error, Finding};
use rusqlite::Row;

use super::db::Db;
use super::location;
use super::open::{SUFFIXES, identity, with_suffix};
use super::ownership::{self, Weakness};
use super::process::Process;
use super::retry::BusyRetry;

const JOURNAL: &str = "PRAGMA journal_mode";
const CHECK: &str = "PRAGMA quick_check(1)";
/// Below this free space in bytes, a warning is reported.
const MIN_FREE: u64 = 16 << 20;

pub(super) fn examine(db: &Db, retry: &BusyRetry<'_>) -> Result<Vec<Finding>, Error> {
    let (journal, check) = db.run(retry, |session| {
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
    findings.extend(examine_file(db.path()));
    Ok(findings)
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
    if Process::can_detect_ends() {
        return Finding::fine(topic, "a dead holder's lock is taken over at once");
    }
    Finding::warning(
        topic,
        "this system does not say which process has ended",
        "a dead holder's lock is free only after its ttl",
        "mount this process's own /proc, or keep the ttl short",
    )
}

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

/// Examines the permissions and the file system of an open file.
fn examine_file(file: &Path) -> Vec<Finding> {
    let mut findings = vec![permissions(file)];
    if let Err(error) = location::check_local(file) {
        findings.push(Finding::unusable(
            "file system",
            error.message(),
            "two hosts can hold one lock",
            "move the file",
        ));
    } else if cfg!(target_os = "linux") {
        findings.push(Finding::fine("file system", "the file is on a local disk"));
    } else {
        findings.push(Finding::warning(
            "file system",
            "this system does not say whether the file is on a local disk",
            "on a network file system SQLite's locks cannot be relied on",
            "make sure that the file is on a local disk",
        ));
    }
    findings.extend(disk_space(file));
    findings
}

fn permissions(file: &Path) -> Finding {
    use std::os::unix::fs::MetadataExt;
    let topic = "permissions";
    if identity(file).is_none() {
        return Finding::unusable(
            topic,
            "the file has been deleted or moved while it was open",
            "the next program creates another file, and does not see these locks",
            "restart all programs that use it",
        );
    }
    if let Err(Weakness { what, advice }) = ownership::check(file) {
        return Finding::unusable(topic, what, "a lock can have two holders", advice);
    }
    let mode = |side| Some(fs::metadata(with_suffix(file, side)).ok()?.mode() & 0o777);
    // A file beside the database keeps the mode of its creation. Of equal modes `max_by_key` takes the
    // last, which is that of the database.
    let modes = SUFFIXES.into_iter().rev().filter_map(mode);
    let mode = modes.max_by_key(|mode| mode & 0o006).unwrap_or_default();
    let advice = format!(
        "chmod o-rwx {file:?}*, and give the users that need it a group: `chgrp GROUP`, and `chmod g+s` on the folder"
    );
    if mode & 0o002 != 0 {
        return Finding::warning(
            topic,
            format!("every user of this host may write the file or one beside it (mode {mode:o})"),
            "any user can take and free every lock",
            advice,
        );
    }
    if mode & 0o004 != 0 {
        return Finding::warning(
            topic,
            format!("every user of this host may read the file or one beside it (mode {mode:o})"),
            "any user can put a read lock on the file, which blocks all lock operations",
            advice,
        );
    }
    Finding::fine(
        topic,
        format!("the file can be read and written (mode {mode:o})"),
    )
}
