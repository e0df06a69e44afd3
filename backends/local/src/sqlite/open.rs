//! From a path to a connection, with an error of its own for everything that can be wrong with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper_core::{Error, ErrorKind, Finding};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::db::failure;
use super::schema::{Trouble, prepare};

/// Many processes may create one file at once, and each step excludes the others.
const OPENING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(1);
/// More than there are different statements.
const STATEMENTS: usize = 32;

/// SQLite's own files are named after the database: this much longer.
const SIDES: [&str; 2] = ["-wal", "-shm"];
/// What a file system takes for a name, less the longest that SQLite adds (`-journal`).
const LONGEST_NAME: usize = 255 - 8;
/// The same of SQLite's own longest path.
const LONGEST_PATH: usize = 512 - 9;

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
    let path = place(path)?;
    one_clock()?;
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

/// The file, there and with all links resolved, so that everybody finds the same wake files.
fn place(path: &Path) -> Result<PathBuf, Error> {
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => return Err(no_file(path)),
    };
    let folder = fs::canonicalize(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::new(
            ErrorKind::Incompatible,
            format!("the folder {folder:?} does not exist; create it"),
        )
        .with_source(error),
        _ => denied(folder, error),
    })?;
    if !folder.is_dir() {
        return Err(Error::new(
            ErrorKind::Incompatible,
            format!("{folder:?} is not a folder; name a file in a folder that is there"),
        ));
    }
    let name = path.file_name().ok_or_else(|| no_file(path))?;
    let file = folder.join(name);
    match fs::canonicalize(&file) {
        Ok(file) => {
            if !file.is_file() {
                return Err(no_file(&file));
            }
            short(&file)?;
            local(&file)?;
            one_name(&file)?;
            writable(&file)?;
            file.parent().map_or(Ok(()), writable)?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if file.is_symlink() {
                return Err(Error::new(
                    ErrorKind::Incompatible,
                    format!(
                        "{file:?} is a link to nothing; name the file itself, or remove the link"
                    ),
                ));
            }
            short(&file)?;
            local(&folder)?;
            create(&file)?;
            Ok(file)
        }
        Err(error) => Err(denied(&file, error)),
    }
}

/// Refuses what the names of SQLite's files beside it would not fit.
fn short(file: &Path) -> Result<(), Error> {
    let name = file.file_name().unwrap_or_default();
    if name.len() <= LONGEST_NAME && file.as_os_str().len() <= LONGEST_PATH {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        format!(
            "{file:?} is too long for SQLite: at most {LONGEST_NAME} bytes for the name, {LONGEST_PATH} in all"
        ),
    ))
}

/// Refuses a file that others may know by another name: half of SQLite's locks are in the files beside
/// it, which are named after it. See section 2.5 of <https://sqlite.org/howtocorrupt.html>.
#[cfg(unix)]
fn one_name(file: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    let data = fs::metadata(file).map_err(|error| denied(file, error))?;
    let refused = |why: &str| {
        Err(Error::new(
            ErrorKind::Incompatible,
            format!("{file:?} {why}"),
        ))
    };
    if data.nlink() > 1 {
        return refused(
            "has more than one name (hard links), and SQLite's locks hold under one; remove the others",
        );
    }
    if is_mounted(file) {
        return refused(
            "is mounted alone, without the files that SQLite keeps beside it; mount its folder",
        );
    }
    Ok(())
}

#[cfg(not(unix))]
fn one_name(_file: &Path) -> Result<(), Error> {
    Ok(())
}

#[cfg(target_os = "linux")]
fn is_mounted(file: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, file, AtFlags::empty(), StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(all(unix, not(target_os = "linux")))]
fn is_mounted(_file: &Path) -> bool {
    false
}

/// Creates it readable and writable by its owner alone; SQLite gives the files beside it the same
/// mode.
fn create(file: &Path) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(denied(file, error)),
    }
}

fn no_file(path: &Path) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!("{path:?} is not a file; name a file for the locks"),
    )
}

fn denied(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ErrorKind::PermissionDenied
        }
        io::ErrorKind::InvalidFilename | io::ErrorKind::NotADirectory => ErrorKind::Incompatible,
        _ => ErrorKind::Unavailable,
    };
    let message = match kind {
        ErrorKind::PermissionDenied => {
            format!(
                "{path:?} cannot be created or written; give this user write permission for the file and its folder"
            )
        }
        _ => format!("{path:?} cannot be used; see the cause"),
    };
    Error::new(kind, message).with_source(error)
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
    if let Err(error) = local(file) {
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

#[cfg(unix)]
fn writable(path: &Path) -> Result<(), Error> {
    use rustix::fs::{Access, access};
    access(path, Access::READ_OK | Access::WRITE_OK).map_err(|errno| denied(path, errno.into()))
}

#[cfg(not(unix))]
fn writable(_path: &Path) -> Result<(), Error> {
    Ok(())
}

/// Refuses file systems on which locks do not reach, or not reliably, all who see the file.
#[cfg(target_os = "linux")]
fn local(path: &Path) -> Result<(), Error> {
    let found = rustix::fs::statfs(path).map_err(|errno| denied(path, errno.into()))?;
    match network_file_system(found.f_type as u32) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "{path:?} is on {name}, where SQLite's locks cannot be relied on; put the file on a local disk, or use a store that is made for several hosts"
            ),
        )),
    }
}

#[cfg(not(target_os = "linux"))]
fn local(_path: &Path) -> Result<(), Error> {
    Ok(())
}

/// Refuses a clock on which a moment is not what the host's others take it for.
#[cfg(target_os = "linux")]
fn one_clock() -> Result<(), Error> {
    // Not there: a system without such a thing.
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    if is_host_time(&offsets) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Incompatible,
        "this process is in a time namespace, and its clock is not that of the others who use the file; start it without an offset of the boottime clock, or use a server",
    ))
}

#[cfg(not(target_os = "linux"))]
fn one_clock() -> Result<(), Error> {
    Ok(())
}

/// By the lines of time_namespaces(7): clock, seconds, nanoseconds.
#[cfg(target_os = "linux")]
fn is_host_time(offsets: &str) -> bool {
    let mut lines = offsets.lines().map(str::split_whitespace);
    lines.all(|mut line| line.next() != Some("boottime") || line.all(|number| number == "0"))
}

/// By the numbers of statfs(2); see linux/magic.h.
#[cfg(target_os = "linux")]
fn network_file_system(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xff53_4d42 | 0xfe53_4d42 => "SMB",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE or virtiofs",
        0x00c3_6400 => "Ceph",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x7461_636f => "OCFS2",
        0x0116_1970 => "GFS2",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        0x1983_0326 => "BeeGFS",
        0x786f_4256 => "a VirtualBox share",
        0xbacb_acbc => "a VMware share",
        _ => return None,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_its_own_is_seen() {
        assert!(is_host_time(""));
        let offset = |boot: &str| format!("monotonic          -7         3\nboottime   {boot}\n");
        assert!(is_host_time(&offset("         0         0")));
        for boot in [
            "     86400         0",
            "        -3 500000000",
            "         0 500000000",
        ] {
            assert!(!is_host_time(&offset(boot)), "{boot}");
        }
    }

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        assert_eq!(network_file_system(0xff53_4d42), Some("SMB"));
        for here in [0xef53, 0x0102_1994, 0x5846_5342, 0x9123_683e, 0x794c_7630] {
            assert_eq!(network_file_system(here), None);
        }
    }
}
