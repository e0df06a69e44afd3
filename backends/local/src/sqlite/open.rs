//! Opens the connection to a lock database, and notices when its files are deleted or replaced.
//!
//! SQLite finds its other files (`-wal`, `-shm`) by name. They contain part of the locks, so a file with two
//! names, or mounted alone, is refused.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant, SystemClock};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::error::AttemptError;
use super::schema::prepare;

/// The capacity of the statement cache: more than the number of different statements.
const STATEMENTS: usize = 32;

/// The number of steps of SQLite's virtual machine between two checks of a statement's deadline: some 100 µs.
const STEPS: i32 = 10_000;

/// The size in bytes from which the log is truncated. The log of one process has 4 MB: SQLite writes it back
/// from 1,000 pages on.
const LONG_LOG: u64 = 32 << 20;
/// How long to wait until other processes let the log be truncated.
const LOG_TIMEOUT: Duration = Duration::from_millis(5);

/// The suffixes of the database and of SQLite's files beside it.
pub(super) const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// The identities of the files with these suffixes.
type Identities = [Option<(u64, u64)>; 3];

/// An open lock database.
pub(super) struct Opened {
    connection: Connection,
    /// When a statement is interrupted, in ns of the host's clock.
    deadline: Arc<AtomicU64>,
    path: PathBuf,
    files: Identities,
    /// Whether this connection has created the tables.
    pub(super) is_new: bool,
}

impl Opened {
    /// Returns whether the open files have been neither deleted nor replaced.
    pub(super) fn exists(&self) -> bool {
        identities(&self.path) == self.files
    }

    /// Calls `work` with the connection. A statement that runs for longer than `limit` fails: a user who may write
    /// the file can add a trigger without an end.
    pub(super) fn run<T>(&self, limit: Duration, work: impl FnOnce(&Connection) -> T) -> T {
        let deadline = SystemClock.now() + limit;
        self.deadline.store(deadline.as_nanos(), Ordering::Relaxed);
        work(&self.connection)
    }

    /// Writes a long log back to the database, and truncates it.
    ///
    /// SQLite writes the log back after commits, too, but other processes append meanwhile. It starts a new log
    /// only when the whole log is written back. While several processes write all the time, that never happens:
    /// the log grew by 60 MB a second.
    pub(super) fn shorten_log(&self) {
        let log = fs::metadata(with_suffix(&self.path, "-wal"));
        if log.is_ok_and(|log| log.len() > LONG_LOG) {
            // If another process writes for longer, the next check repeats it.
            let _ = self.connection.busy_timeout(LOG_TIMEOUT);
            let truncate = "PRAGMA wal_checkpoint(TRUNCATE)";
            let _ = self.connection.query_row(truncate, (), |_| Ok(()));
            let _ = self.connection.busy_timeout(Duration::ZERO);
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.exists() {
            // The log of a deleted database must not be written to its replacement.
            let config = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            let _ = self.connection.set_db_config(config, true);
        }
    }
}

/// Opens the lock database at `path`, which is absolute and without links.
pub(super) fn connect(path: &Path) -> Result<Opened, AttemptError> {
    // The mutex of the slot admits one thread at a time.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut opened = Opened {
        connection: Connection::open_with_flags(path, flags)?,
        deadline: Arc::new(AtomicU64::new(HostInstant::NEVER.as_nanos())),
        path: path.to_owned(),
        files: Identities::default(),
        is_new: false,
    };
    let connection = &mut opened.connection;
    // `BusyRetry` retries instead, and lets other threads use the connection in between.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    let deadline = Arc::clone(&opened.deadline);
    let is_over = move || SystemClock.now().as_nanos() >= deadline.load(Ordering::Relaxed);
    // The result is `()` in older versions.
    let _ = connection.progress_handler(STEPS, Some(is_over));
    let prepared = prepare(connection);
    if matches!(prepared, Err(AttemptError::Busy(_))) {
        return prepared.map(|_| opened);
    }
    let files = identities(path);
    if let Some(open) = OpenFiles::by_this_process(path)
        && (open.deleted_logs > 0 || (prepared.is_ok() && !open.are_all(&files)))
    {
        return Err(AttemptError::Failed(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the -wal or -shm file of {path:?} was deleted, and another connection of this program keeps it open, so that locks taken here would exclude no other process; close that connection, or restart this program"
            ),
        )));
    }
    opened.is_new = prepared?;
    opened.files = files;
    Ok(opened)
}

/// The open files of one database in this process. SQLite opens one `-shm` per process and database, so
/// a new connection gets the `-shm` of the older connections even if it was deleted. It indexes the
/// `-wal` of the older connections.
struct OpenFiles {
    identities: Vec<(u64, u64)>,
    /// The number of open `-wal` files that were deleted without their database.
    deleted_logs: i32,
}

impl OpenFiles {
    /// Reads the open files from `/proc`. Returns `None` on systems without it.
    #[cfg(target_os = "linux")]
    fn by_this_process(path: &Path) -> Option<Self> {
        let start = path.as_os_str().as_encoded_bytes();
        let [database, log] =
            ["", "-wal"].map(|suffix| with_suffix(path, &format!("{suffix} (deleted)")));
        let mut open = Self {
            identities: Vec::new(),
            deleted_logs: 0,
        };
        for descriptor in fs::read_dir("/proc/self/fd").ok()?.flatten() {
            let descriptor = descriptor.path();
            match fs::read_link(&descriptor) {
                Ok(file) if file == log => open.deleted_logs += 1,
                // A deleted database: its deleted log is not counted.
                Ok(file) if file == database => open.deleted_logs -= 1,
                Ok(file) if file.as_os_str().as_encoded_bytes().starts_with(start) => {
                    open.identities.extend(identity(&descriptor));
                }
                _ => {}
            }
        }
        Some(open)
    }

    #[cfg(not(target_os = "linux"))]
    fn by_this_process(_path: &Path) -> Option<Self> {
        None
    }

    fn are_all(&self, files: &Identities) -> bool {
        let mut files = files.iter();
        files.all(|file| file.is_some_and(|file| self.identities.contains(&file)))
    }
}

/// Returns the device and inode of a file, or `None` if it is gone. A file that replaces one that is still
/// open has another inode.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = fs::metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

fn identities(path: &Path) -> Identities {
    SUFFIXES.map(|suffix| identity(&with_suffix(path, suffix)))
}

/// Appends a suffix to the file name.
pub(super) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
