//! A SQLite file.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{SqliteFile, TestServer};
use rusqlite::{Error, ErrorCode};

use super::{Store, StoreFault};
use crate::faults::Lane;

/// How long a process may go on with deleted files. It compares its files with those on disk every 50 ms, and
/// may be in a transaction.
const UNNOTICED: Duration = Duration::from_millis(500);

pub(super) fn start() -> io::Result<Store> {
    let file = Arc::new(SqliteFile::new()?);
    let [busy, emptied, deleted] = [(); 3].map(|()| Arc::clone(&file));
    let faults = vec![
        StoreFault::new("write lock taken", move |lane| {
            unless_busy(be_busy(&busy, lane))
        }),
        StoreFault::new("tables emptied", move |lane| {
            lane.journal.forget(|| unless_busy(emptied.wipe()))
        }),
        StoreFault::new("files deleted", move |lane| {
            let delete = || delete(&deleted.path());
            lane.journal.forget_of(None, UNNOTICED, delete)
        }),
    ];
    // Two keepers of a process share its locks of the files.
    Ok(Store {
        faults,
        ..Store::new(vec![file.url(); 2], vec![file])
    })
}

/// Keeps the write lock for a while.
fn be_busy(file: &Arc<SqliteFile>, lane: &mut Lane<'_>) -> io::Result<()> {
    let end = Arc::clone(file).cut_off()?;
    lane.spell();
    end()
}

/// Deletes the files. Workers that have them open must notice.
fn delete(file: &Path) -> io::Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        match fs::remove_file(format!("{}{suffix}", file.display())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Leaves a fault out if the file is busy, or does not exist yet.
fn unless_busy(result: io::Result<()>) -> io::Result<()> {
    let Err(error) = result else {
        return Ok(());
    };
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    let code = cause.and_then(Error::sqlite_error_code);
    let left_out = [
        ErrorCode::DatabaseBusy,
        ErrorCode::DatabaseLocked,
        ErrorCode::Unknown,
    ];
    match code.is_some_and(|code| left_out.contains(&code)) {
        true => Ok(()),
        false => Err(error),
    }
}
