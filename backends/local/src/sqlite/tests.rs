//! Helpers of the SQLite tests.

mod file_changes;
mod leases;
mod opening;
mod processes;
mod waiting;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, CancelToken, Config, Drivers, HostInstant, LeasePolicy, LockGuard, LockKeeper,
    ManualClock, Released, Wait,
};
use rusqlite::Connection;

use super::db::convert_error;
use super::*;
use crate::testing::{Spy, until};

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
        SqliteProvider::open(self.path().to_str().unwrap(), "default").unwrap()
    }

    fn keeper(&self) -> LockKeeper {
        keeper(self.provider())
    }

    fn raw(&self) -> Connection {
        let raw = Connection::open(self.path()).unwrap();
        raw.busy_timeout(Duration::from_secs(60)).unwrap();
        raw
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

fn refused(path: &Path) -> Error {
    SqliteProvider::open(path.to_str().unwrap(), "default").unwrap_err()
}
