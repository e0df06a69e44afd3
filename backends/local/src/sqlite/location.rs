//! Resolves the path of a lock database, and refuses locations where its locks would not work.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use lockkeeper_core::{Error, ErrorKind};

use super::error::incompatible;
use super::open::{SUFFIXES, with_suffix};
use super::ownership;

/// The longest file name, less the longest suffix that SQLite adds (`-journal`).
const MAX_NAME: usize = 255 - 8;
/// SQLite's longest path, less the same suffix.
const MAX_PATH: usize = 512 - 9;

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

/// Returns the path without links, so that all processes find the same sockets. Creates a missing file.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, Error> {
    let folder = match path.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
        None => return Err(no_file(path)),
    };
    let folder = fs::canonicalize(folder).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            incompatible(format!("the folder {folder:?} does not exist; create it"))
                .with_source(error)
        }
        _ => denied(folder, error),
    })?;
    if !folder.is_dir() {
        return Err(incompatible(format!(
            "{folder:?} is not a folder; name a file in an existing folder"
        )));
    }
    let name = path.file_name().ok_or_else(|| no_file(path))?;
    let file = folder.join(name);
    ownership::check_link(&file)?;
    match fs::canonicalize(&file) {
        Ok(file) => {
            if !file.is_file() {
                return Err(no_file(&file));
            }
            check_length(&file)?;
            check_local(&file)?;
            check_single_name(&file)?;
            check_writable(&file)?;
            check_side_files(&file)?;
            file.parent().map_or(Ok(()), check_writable)?;
            ownership::check(&file)?;
            Ok(file)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if file.is_symlink() {
                return Err(incompatible(format!(
                    "{file:?} is a link to nothing; name the file itself, or remove the link"
                )));
            }
            check_length(&file)?;
            check_local(&folder)?;
            ownership::check_new(&file)?;
            create(&file)?;
            Ok(file)
        }
        Err(error) => Err(denied(&file, error)),
    }
}

/// Refuses a path that is too long for the files that SQLite creates beside the database.
fn check_length(file: &Path) -> Result<(), Error> {
    let name = file.file_name().unwrap_or_default();
    if name.len() <= MAX_NAME && file.as_os_str().len() <= MAX_PATH {
        return Ok(());
    }
    Err(incompatible(format!(
        "{file:?} is too long for SQLite: at most {MAX_NAME} bytes for the name, {MAX_PATH} in all"
    )))
}

/// Refuses a file with another name: half of SQLite's locks are in the files beside the database, which
/// are named after it. See section 2.5 of <https://sqlite.org/howtocorrupt.html>.
fn check_single_name(file: &Path) -> Result<(), Error> {
    use std::os::unix::fs::MetadataExt;
    let data = fs::metadata(file).map_err(|error| denied(file, error))?;
    let refused = |why: &str| Err(incompatible(format!("{file:?} {why}")));
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

#[cfg(target_os = "linux")]
fn is_mounted(file: &Path) -> bool {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    let found = statx(CWD, file, AtFlags::empty(), StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

#[cfg(not(target_os = "linux"))]
fn is_mounted(_file: &Path) -> bool {
    false
}

/// Creates the file with permissions for its owner only. SQLite gives the files beside it the same mode.
fn create(file: &Path) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, ownership::NEW_MODE);
    match options.open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(denied(file, error)),
    }
}

fn no_file(path: &Path) -> Error {
    incompatible(format!("{path:?} is not a file; name a file for the locks"))
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
                "{path:?} cannot be created or written; give this user write permission for the file, those beside it and the folder; where users share them by a group, `chmod g+s` on the folder keeps it"
            )
        }
        _ => format!("{path:?} cannot be used; see the cause"),
    };
    Error::new(kind, message).with_source(error)
}

/// Checks the files that SQLite has made beside the file: in a folder without setgid, these have the group of the user who
/// made them.
fn check_side_files(file: &Path) -> Result<(), Error> {
    SUFFIXES.into_iter().skip(1).try_for_each(|suffix| {
        let beside = with_suffix(file, suffix);
        match check_writable(&beside) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
            // A process that opens or closes the database creates or deletes it at any time.
            _ => Ok(()),
        }
    })
}

fn check_writable(path: &Path) -> Result<(), Error> {
    use rustix::fs::{Access, access};
    access(path, Access::READ_OK | Access::WRITE_OK).map_err(|errno| denied(path, errno.into()))
}

/// Refuses file systems on which SQLite's locks do not reliably exclude other hosts.
#[cfg(target_os = "linux")]
pub(super) fn check_local(path: &Path) -> Result<(), Error> {
    let found = rustix::fs::statfs(path).map_err(|errno| denied(path, errno.into()))?;
    match network_file_system(found.f_type as u32) {
        None => Ok(()),
        Some(name) => Err(incompatible(format!(
            "{path:?} is on {name}, where SQLite's locks cannot be relied on; put the file on a local disk, or use a store that is made for several hosts"
        ))),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn check_local(_path: &Path) -> Result<(), Error> {
    Ok(())
}

/// Refuses a time namespace, whose clock differs from the clock of other processes.
#[cfg(target_os = "linux")]
pub(super) fn check_clock() -> Result<(), Error> {
    // The file is missing on systems without time namespaces.
    let offsets = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    if is_host_time(&offsets) {
        return Ok(());
    }
    Err(incompatible(
        "this process is in a time namespace, and its clock differs from that of the other processes that use the file; start it without an offset of the boottime clock, or use a server",
    ))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn check_clock() -> Result<(), Error> {
    Ok(())
}

/// Parses the lines of time_namespaces(7): clock, seconds, nanoseconds.
#[cfg(target_os = "linux")]
fn is_host_time(offsets: &str) -> bool {
    let mut lines = offsets.lines().map(str::split_whitespace);
    lines.all(|mut line| line.next() != Some("boottime") || line.all(|number| number == "0"))
}

/// Names a network file system by its number in statfs(2); see linux/magic.h.
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn time_namespace_with_an_offset_is_recognised() {
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
    fn side_files_may_be_created_and_deleted_during_the_check() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("locks.db");
        let beside = with_suffix(&file, "-wal");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    fs::write(&beside, "").unwrap();
                    fs::remove_file(&beside).unwrap();
                }
            });
            let found = (0..20_000).try_for_each(|_| check_side_files(&file));
            is_over.store(true, Ordering::Relaxed);
            found.unwrap();
        });
    }

    #[test]
    fn network_file_systems_are_recognised_by_number() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        assert_eq!(network_file_system(0xff53_4d42), Some("SMB"));
        for here in [0xef53, 0x0102_1994, 0x5846_5342, 0x9123_683e, 0x794c_7630] {
            assert_eq!(network_file_system(here), None);
        }
    }
}
