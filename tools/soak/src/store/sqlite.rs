//! A SQLite file.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::{Connection, Error, ErrorCode};
use tempfile::TempDir;

use super::{Store, StoreFault};
use crate::faults::Lane;

/// How long this program waits for a worker that writes. A worker may be stopped while it writes.
const BUSY: Duration = Duration::from_secs(5);

/// How long a process may go on with deleted files: it compares them with those on disk every 50 ms, and may be
/// in a transaction.
const UNNOTICED: Duration = Duration::from_millis(500);

pub(super) struct Sqlite {
    folder: TempDir,
}

impl Sqlite {
    pub(super) fn start() -> io::Result<Self> {
        Ok(Self {
            folder: tempfile::Builder::new().prefix("lk-").tempdir()?,
        })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn connect(&self) -> Result<Connection, Error> {
        let connection = Connection::open(self.path())?;
        connection.busy_timeout(BUSY)?;
        Ok(connection)
    }

    /// Keeps the write lock for a while.
    fn be_busy(&self, lane: &mut Lane<'_>) -> Result<(), Error> {
        let writer = self.connect()?;
        writer.execute_batch("BEGIN IMMEDIATE")?;
        lane.spell();
        writer.execute_batch("ROLLBACK")
    }

    /// Empties the tables.
    fn wipe(&self, lane: &Lane<'_>) -> io::Result<()> {
        const EMPTY: &str = "BEGIN IMMEDIATE;
            DELETE FROM waiter; DELETE FROM lock WHERE name <> ''; UPDATE lock SET epoch = 0;
            COMMIT;";
        let wipe = || self.connect()?.execute_batch(EMPTY);
        lane.journal.forget(|| unless_busy(wipe()))
    }

    /// Deletes the files. Workers that have them open must notice.
    fn delete(&self, lane: &Lane<'_>) -> io::Result<()> {
        let delete = || {
            for suffix in ["", "-wal", "-shm"] {
                let path = self.folder.path().join(format!("locks.db{suffix}"));
                match fs::remove_file(path) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        };
        lane.journal.forget_of(None, UNNOTICED, delete)
    }
}

/// Leaves a fault out if the file is busy, or does not exist yet.
fn unless_busy(result: Result<(), Error>) -> io::Result<()> {
    match result {
        Err(Error::SqliteFailure(failure, _))
            if matches!(
                failure.code,
                ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::Unknown
            ) =>
        {
            Ok(())
        }
        other => other.map_err(io::Error::other),
    }
}

impl Store for Sqlite {
    /// Two keepers of a process share its locks of the files.
    fn urls(&self) -> Vec<String> {
        vec![format!("sqlite:{}?", self.path().display()); 2]
    }

    fn faults(&self) -> Vec<StoreFault<'_>> {
        vec![
            StoreFault::new("write lock taken", |lane| unless_busy(self.be_busy(lane))),
            StoreFault::new("tables emptied", |lane| self.wipe(lane)),
            StoreFault::new("files deleted", |lane| self.delete(lane)),
        ]
    }

    fn entries(&self) -> io::Result<Vec<String>> {
        const ROWS: &str = "SELECT 'lock ' || namespace || ' ' || name FROM lock WHERE name <> ''
            UNION ALL SELECT 'waiter ' || namespace || ' ' || name FROM waiter";
        let rows = || -> Result<Vec<String>, Error> {
            let connection = self.connect()?;
            let mut statement = connection.prepare(ROWS)?;
            let rows = statement.query_map((), |row| row.get(0))?;
            rows.collect()
        };
        rows().map_err(io::Error::other)
    }
}
