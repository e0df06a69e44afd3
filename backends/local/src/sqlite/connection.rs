//! The connection of a provider, and the rules for all connections of one process: SQLite shares
//! descriptors, locks and the `-shm` file between them.
//!
//! Before a connection is opened, all connections to deleted files are closed. Afterwards the files on disk must be
//! the files that the process has open (`/proc/self/fd`); if not, the answer is `Unavailable`. Without that check,
//! two processes could hold one name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::{Error, HostInstant, LeaseVerifiers};
use rusqlite::Connection;

use super::error::{AttemptError, incompatible};
use super::location;
use super::open::{Opened, connect};
use super::wake;
use crate::lock;

/// The interval at which a provider checks that its files still exist, and how long the log is.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The slots of this process. The mutex is held while a connection is opened, for two reasons:
///
/// - Closing any descriptor of a file drops all POSIX locks of this process on it, also those of
///   another connection. The only descriptor here that is not SQLite's own is the one that creates the
///   file. No other connection may be opened while it exists.
/// - A new connection shares the `-shm` of the connections that this process has open. When that file
///   was deleted, all of them must be closed before the first is opened again.
///
/// Lock order: this mutex, then that of a slot.
static SLOTS: Mutex<Vec<Weak<Slot>>> = Mutex::new(Vec::new());

/// The connection of a provider.
pub(super) struct Slot {
    /// The path without links.
    pub(super) path: PathBuf,
    /// The process that opened it. A forked child has a copy of its parent's connection, but not the
    /// POSIX locks that keep other processes from deleting its files.
    pid: u32,
    /// Whether a deleted file is created again.
    create: bool,
    /// The keepers that lock in these files.
    pub(super) verifiers: LeaseVerifiers,
    current: Mutex<Current>,
}

struct Current {
    /// `None` if the open files were deleted, and could not be opened again.
    opened: Option<Opened>,
    /// When the files were last checked.
    checked_at: HostInstant,
}

impl Current {
    /// Closes the connection if its files were deleted or replaced, and returns whether it did. While it is
    /// open, SQLite gives its files to every new connection of this process.
    fn close_if_gone(&mut self) -> bool {
        let is_gone = self.opened.as_ref().is_some_and(|it| !it.exists());
        if is_gone {
            self.opened = None;
        }
        is_gone
    }
}

impl Slot {
    /// Makes one attempt to open the database at `path`. Without `create`, a missing file is an error.
    pub(super) fn open(
        path: &Path,
        create: bool,
        now: HostInstant,
    ) -> Result<Arc<Self>, AttemptError> {
        let mut slots = lock(&SLOTS);
        let (path, opened) = open(&mut slots, path, create)?;
        let slot = Arc::new(Self {
            path,
            pid: std::process::id(),
            create,
            verifiers: LeaseVerifiers::default(),
            current: Mutex::new(Current {
                opened: Some(opened),
                checked_at: now,
            }),
        });
        slots.push(Arc::downgrade(&slot));
        Ok(slot)
    }

    /// Calls `work` with a connection to the current files at the path, since locks in deleted files
    /// exclude no other process. No statement runs for longer than `limit`.
    pub(super) fn with<T>(
        &self,
        now: HostInstant,
        limit: Duration,
        work: impl FnOnce(&Connection) -> T,
    ) -> Result<T, AttemptError> {
        if self.pid != std::process::id() {
            return Err(inherited(&self.path).into());
        }
        let is_gone = {
            let mut current = lock(&self.current);
            let is_due = now.saturating_since(current.checked_at) >= CHECK_INTERVAL;
            let is_gone = is_due && current.close_if_gone();
            if is_due {
                current.checked_at = now;
            }
            if let Some(opened) = &current.opened {
                let done = opened.run(limit, work);
                if is_due {
                    opened.shorten_log();
                }
                return Ok(done);
            }
            is_gone
        };
        if is_gone {
            self.verifiers.verify_all();
        }
        let mut slots = lock(&SLOTS);
        let (_, opened) = open(&mut slots, &self.path, self.create)?;
        let mut current = lock(&self.current);
        drop(slots);
        // Another thread may have opened the files first.
        let opened = current.opened.get_or_insert(opened);
        Ok(opened.run(limit, work))
    }
}

impl Slot {
    /// Makes the next use check that the files still exist.
    pub(super) fn check_files(&self) {
        lock(&self.current).checked_at = HostInstant::from_nanos(0);
    }

    fn close_if_gone(&self) {
        let is_gone = lock(&self.current).close_if_gone();
        if is_gone {
            self.verifiers.verify_all();
        }
    }
}

fn open(
    slots: &mut Vec<Weak<Slot>>,
    path: &Path,
    create: bool,
) -> Result<(PathBuf, Opened), AttemptError> {
    if !create {
        check_exists(path)?;
    }
    let path = location::resolve(path)?;
    location::check_clock()?;
    slots.retain(|slot| slot.strong_count() > 0);
    for slot in slots.iter().filter_map(Weak::upgrade) {
        if slot.path != path {
            continue;
        }
        if slot.pid != std::process::id() {
            return Err(inherited(&path).into());
        }
        slot.close_if_gone();
    }
    let opened = connect(&path)?;
    if opened.is_new {
        // An older file with leases may have been deleted.
        wake::notify_all_holders(&path);
    }
    Ok((path, opened))
}

/// Refuses a missing file for callers that do not create it. Otherwise a wrong path would look like
/// an empty store.
fn check_exists(path: &Path) -> Result<(), Error> {
    match fs::exists(path) {
        Ok(false) => Err(incompatible(format!(
            "there is no file {path:?}; no program has locked there yet, or the path is wrong: check the path"
        ))),
        // Opening the file reports any other error.
        Ok(true) | Err(_) => Ok(()),
    }
}

fn inherited(path: &Path) -> Error {
    incompatible(format!(
        "{path:?} was opened before this process was forked, and SQLite cannot be used on both sides of a fork; drop what was opened before, and open it after forking"
    ))
}
