//! From a path to a connection, with an error of its own for everything that can be wrong with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind, Finding};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::db::failure;
use super::place;
use super::schema::{Trouble, prepare};

/// Many processes may create one file at once, and each step excludes the others.
const OPENING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// More than there are different statements.
const STATEMENTS: usize = 32;

/// What SQLite's own files beside the database have behind its name.
const SIDES: [&str; 2] = ["-wal", "-shm"];

/// An open lock database.
pub(super) struct Opened {
    pub(super) connection: Connection,
    /// Where it really is.
    pub(super) path: PathBuf,
    files: [Option<(u64, u64)>; 3],
}

impl Opened {
    /// Whether the files that are open are still those which others find: not deleted, nor replaced.
    pub(super) fn is_there(&self) -> bool {
        identities(&self.path) == self.files
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.is_there() {
            // What it knows is nobody's state any more, and must not get into a file that is.
            let config = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            let _ = self.connection.set_db_config(config, true);
        }
    }
}

/// Opens the lock database at `path`. Without `create`, one that is not there is an error.
pub(super) fn open(path: &Path, create: bool) -> Result<Opened, Error> {
    if !create {
        must_be_there(path)?;
    }
    // Closing any descriptor of a file takes this process's POSIX locks on it away, also those of
    // another connection. The only one here that is not SQLite's is the one that creates the file,
    // so no other connection may come into being meanwhile.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let path = place::find(path)?;
    place::one_clock()?;
    let connection = connect(&path).map_err(failure)?;
    if connection.is_readonly("main").map_err(failure)? {
        return Err(Error::new(
            ErrorKind::PermissionDenied,
            format!("{path:?} can only be read; give this user write permission"),
        ));
    }
    let began = Instant::now();
    loop {
        match prepare(&connection) {
            Ok(()) => {
                return Ok(Opened {
                    files: identities(&path),
                    connection,
                    path,
                });
            }
            Err(Trouble::Busy(_)) if began.elapsed() < OPENING => {
                std::thread::sleep(PAUSE.mul_f64(0.2 + fastrand::f64()));
            }
            Err(Trouble::Busy(error)) => return Err(failure(error)),
            Err(Trouble::Failed(error)) => return Err(error),
        }
    }
}

/// Whether a URL's path can be one.
pub(super) fn check(path: &str) -> Result<(), Error> {
    if path == ":memory:" {
        return Err(Error::new(
            ErrorKind::InvalidUrl,
            "a database in memory excludes nobody; write memory: for locks within one process",
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

/// Tells files of one path apart: two containers can have one each. `None`: it is gone.
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

fn identities(path: &Path) -> [Option<(u64, u64)>; 3] {
    let [wal, shm] = SIDES.map(|side| {
        let mut name = path.as_os_str().to_owned();
        name.push(side);
        identity(Path::new(&name))
    });
    [identity(path), wal, shm]
}

/// For whoever only looks: a wrong path is no store where nothing is held.
fn must_be_there(path: &Path) -> Result<(), Error> {
    match fs::exists(path) {
        Ok(false) => Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "there is no file {path:?}: nobody has locked there yet, or the path is another one"
            ),
        )),
        // What cannot be told now is told by opening it.
        Ok(true) | Err(_) => Ok(()),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // One thread at a time uses it, by our own mutex.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // We wait ourselves, so that other threads get the connection in between.
    connection.busy_timeout(Duration::ZERO)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// What can be wrong with the place of a file that could be opened.
#[cfg(unix)]
pub(super) fn examine(file: &Path) -> Vec<Finding> {
    use std::os::unix::fs::MetadataExt;
    let mut findings = Vec::new();
    match fs::metadata(file) {
        Ok(data) if data.mode() & 0o002 != 0 => findings.push(Finding::warning(
            "permissions",
            format!(
                "everybody on this host may write the file (mode {:o})",
                data.mode() & 0o777
            ),
            "any user can take and free every lock",
            "chmod o-w it, and give those who need it a group",
        )),
        Ok(data) => findings.push(Finding::fine(
            "permissions",
            format!(
                "the file can be read and written (mode {:o})",
                data.mode() & 0o777
            ),
        )),
        Err(_) => findings.push(deleted()),
    }
    if let Err(error) = place::local(file) {
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
            "see to it that the file is on a local disk",
        ));
    }
    findings
}

#[cfg(unix)]
fn deleted() -> Finding {
    Finding::unusable(
        "permissions",
        "the file has been deleted or moved while it was open",
        "the next program makes another one, and does not see these locks",
        "start all programs that use it again",
    )
}

#[cfg(not(unix))]
pub(super) fn examine(_file: &Path) -> Vec<Finding> {
    Vec::new()
}
