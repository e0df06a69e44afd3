//! Opens the connection to a lock database, and examines its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind, Finding};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::location;
use super::schema::{AttemptError, prepare};

/// The capacity of the statement cache: more than the number of different statements.
const STATEMENTS: usize = 32;

/// The suffixes of the database and of SQLite's files beside it.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// The identities of the files with these suffixes.
type Identities = [Option<(u64, u64)>; 3];

/// An open lock database.
pub(super) struct Opened {
    pub(super) connection: Connection,
    path: PathBuf,
    files: Identities,
}

impl Opened {
    /// Returns whether the open files have been neither deleted nor replaced.
    pub(super) fn exists(&self) -> bool {
        identities(&self.path) == self.files
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
        path: path.to_owned(),
        files: Identities::default(),
    };
    let connection = &opened.connection;
    // `Patience` retries instead, and lets other threads use the connection in between.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    if connection.is_readonly("main")? {
        return Err(AttemptError::Failed(Error::new(
            ErrorKind::PermissionDenied,
            format!("{path:?} can only be read; give this user write permission"),
        )));
    }
    let prepared = prepare(connection);
    if matches!(prepared, Err(AttemptError::Busy(_))) {
        return prepared.map(|()| opened);
    }
    let files = identities(path);
    if let Some(used) = Used::by_this_process(path)
        && (used.deleted_logs > 0 || (prepared.is_ok() && !used.are_all(&files)))
    {
        return Err(AttemptError::Failed(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the -wal or -shm file of {path:?} was deleted, and another connection of this program keeps it open, so that locks taken here would exclude no other process; close that connection, or restart this program"
            ),
        )));
    }
    prepared?;
    opened.files = files;
    Ok(opened)
}

/// The open files of one database in this process. SQLite opens one `-shm` per process and database, so
/// a new connection gets the `-shm` of the older connections even if it was deleted. It indexes the
/// `-wal` of the older connections.
struct Used {
    identities: Vec<(u64, u64)>,
    /// The number of open `-wal` files that were deleted without their database.
    deleted_logs: i32,
}

impl Used {
    /// Reads the open files from `/proc`. Returns `None` on systems without it.
    #[cfg(target_os = "linux")]
    fn by_this_process(path: &Path) -> Option<Self> {
        let start = path.as_os_str().as_encoded_bytes();
        let [database, log] =
            ["", "-wal"].map(|side| with_suffix(path, &format!("{side} (deleted)")));
        let mut used = Self {
            identities: Vec::new(),
            deleted_logs: 0,
        };
        for descriptor in fs::read_dir("/proc/self/fd").ok()?.flatten() {
            let descriptor = descriptor.path();
            match fs::read_link(&descriptor) {
                Ok(file) if file == log => used.deleted_logs += 1,
                // A deleted database: its deleted log is not counted.
                Ok(file) if file == database => used.deleted_logs -= 1,
                Ok(file) if file.as_os_str().as_encoded_bytes().starts_with(start) => {
                    used.identities.extend(identity(&descriptor));
                }
                _ => {}
            }
        }
        Some(used)
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

/// Refuses a URL's path that names no file.
pub(super) fn check_path(path: &str) -> Result<(), Error> {
    if path == ":memory:" {
        return Err(Error::new(
            ErrorKind::InvalidUrl,
            "a database in memory excludes no other process; write memory: for locks within one process",
        ));
    }
    if path.is_empty() || path.contains('\0') {
        return Err(Error::new(
            ErrorKind::InvalidUrl,
            "`sqlite:` needs the path of a file, such as sqlite:/var/lib/app/locks.db",
        ));
    }
    Ok(())
}

/// Returns what distinguishes files with one path, for example in two containers. Returns `None` if the
/// file is gone.
pub(super) fn identity(path: &Path) -> Option<(u64, u64)> {
    #[cfg(unix)]
    return {
        use std::os::unix::fs::MetadataExt;
        let data = fs::metadata(path).ok()?;
        Some((data.dev(), data.ino()))
    };
    #[cfg(not(unix))]
    {
        let _ = path;
        None
    }
}

fn identities(path: &Path) -> Identities {
    SUFFIXES.map(|side| identity(&with_suffix(path, side)))
}

/// Appends a suffix to the file name.
fn with_suffix(path: &Path, side: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(side);
    PathBuf::from(name)
}

/// Examines the permissions and the file system of an open file.
#[cfg(unix)]
pub(super) fn examine(file: &Path) -> Vec<Finding> {
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
    findings
}

#[cfg(unix)]
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
    let mode = |side| Some(fs::metadata(with_suffix(file, side)).ok()?.mode() & 0o777);
    // A file beside the database keeps the mode of its creation. Of equal modes `max_by_key` takes the
    // last, which is that of the database.
    let modes = SUFFIXES.into_iter().rev().filter_map(mode);
    let mode = modes.max_by_key(|mode| mode & 0o006).unwrap_or_default();
    let advice = format!("chmod o-rwx {file:?}*, and give the users that need it a group");
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

#[cfg(not(unix))]
pub(super) fn examine(_file: &Path) -> Vec<Finding> {
    Vec::new()
}
