//! The SQLite store.

mod batches;
mod file_changes;
mod leases;
mod losses;
mod modes;
mod opening;
mod processes;
mod waiting;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, CancelToken, Capability, Clock, Config, Drivers, Error, ErrorKind, HostInstant,
    LeasePolicy, LockGuard, LockKeeper, LockProvider, Released, SystemClock, Wait,
};
use lockkeeper_local::{SqliteDriver, SqliteProvider};
use rusqlite::Connection;

use crate::{manual_clock, until};

/// A temporary folder with a lock database.
struct TempStore {
    folder: tempfile::TempDir,
}

impl TempStore {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn provider(&self) -> SqliteProvider {
        open(&self.path()).unwrap()
    }

    fn provider_with_clock(&self, clock: Arc<dyn Clock>) -> Arc<dyn LockProvider> {
        let path = self.path();
        let opened = SqliteProvider::with_clock(path.to_str().unwrap(), "default", clock);
        Arc::new(opened.unwrap())
    }

    fn keeper(&self) -> LockKeeper {
        keeper(self.provider())
    }

    fn raw(&self) -> Connection {
        let raw = Connection::open(self.path()).unwrap();
        raw.busy_timeout(Duration::from_secs(60)).unwrap();
        raw
    }

    /// Returns the start of the names of all sockets. A provider has one.
    fn socket_prefix(&self) -> String {
        let sockets = self.files().into_iter();
        let mut prefixes = sockets.filter_map(|file| Some(file.split_once("-wake-")?.0.to_owned()));
        prefixes.next().unwrap() + "-wake-"
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut files: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        files
    }
}

fn keeper(provider: SqliteProvider) -> LockKeeper {
    LockKeeper::builder(Arc::new(provider))
        .handover_max(0)
        .wait(Wait::Forever)
        .build()
        .unwrap()
}

fn count(raw: &Connection, rows: &str) -> i64 {
    raw.query_row(&format!("SELECT count(*) FROM {rows}"), (), |row| {
        row.get(0)
    })
    .unwrap()
}

fn waiters(raw: &Connection) -> i64 {
    count(raw, "waiter")
}

fn locks(raw: &Connection) -> i64 {
    count(raw, "lock WHERE name <> ''")
}

fn open(path: &Path) -> Result<SqliteProvider, Error> {
    SqliteProvider::open(path.to_str().unwrap(), "default")
}
