//! Refuses a database if another user could have made its files, or could replace them.
//!
//! SQLite keeps part of a lock's state in files beside the database. A user who created such a file earlier can
//! change it while programs hold locks. Then a lock has two holders. The sticky bit of a folder does not prevent
//! that: it only protects files from being deleted by others. So every user who may write the folder must be one
//! who may write the database.
//!
//! The owners of the folder and of the folders above it are trusted, since they can replace the whole folder.
//! Access control lists are not read.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use lockkeeper_core::{Error, ErrorKind};
use rustix::process::{getegid, geteuid};

use super::open::with_suffix;

const WRITE_GROUP: u32 = 0o020;
const WRITE_OTHERS: u32 = 0o002;
/// The mode of a new database.
pub(super) const NEW_MODE: u32 = 0o600;

/// The suffixes of the files that SQLite reads beside a database. A lock database has no `-journal`, but if SQLite
/// finds one, it writes its content to the database.
const SIDE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// What is wrong with the owner or the permissions of a file.
pub(super) struct Weakness {
    pub(super) what: String,
    pub(super) advice: String,
}

impl From<Weakness> for Error {
    fn from(weakness: Weakness) -> Self {
        let Weakness { what, advice } = weakness;
        Self::new(ErrorKind::PermissionDenied, format!("{what}; {advice}"))
    }
}

/// The owner, the group and the mode of a file.
#[derive(Clone, Copy)]
struct Access {
    owner: u32,
    group: u32,
    mode: u32,
}

impl Access {
    fn of(data: &Metadata) -> Self {
        Self {
            owner: data.uid(),
            group: data.gid(),
            mode: data.mode(),
        }
    }

    fn may(self, bits: u32) -> bool {
        self.mode & bits != 0
    }
}

/// Refuses a symbolic link at `file`, unless this user, root or the owner of its folder made it.
pub(super) fn check_link(file: &Path) -> Result<(), Weakness> {
    let (Ok(link), Some(Ok(folder))) =
        (fs::symlink_metadata(file), file.parent().map(fs::metadata))
    else {
        return Ok(());
    };
    if !link.is_symlink() || [0, geteuid().as_raw(), folder.uid()].contains(&link.uid()) {
        return Ok(());
    }
    Err(Weakness {
        what: format!(
            "{file:?} is a link that another user made (uid {})",
            link.uid()
        ),
        advice: "delete it, or name the file itself".to_owned(),
    })
}

/// Checks the folder in which a database will be created.
pub(super) fn check_new(file: &Path) -> Result<(), Weakness> {
    let new = Access {
        owner: geteuid().as_raw(),
        group: getegid().as_raw(),
        mode: NEW_MODE,
    };
    check_folder(file, new)
}

/// Checks the folder of a database, and the files beside it.
pub(super) fn check(file: &Path) -> Result<(), Weakness> {
    // If this fails, opening the file reports the error.
    let Ok(database) = fs::metadata(file) else {
        return Ok(());
    };
    let database = Access::of(&database);
    check_folder(file, database)?;
    for suffix in SIDE_FILES {
        let beside = with_suffix(file, suffix);
        // Another process may create or delete this file at any time, by opening or closing the database.
        let Ok(data) = fs::symlink_metadata(&beside) else {
            continue;
        };
        if !may_have_made(Access::of(&data), database) {
            return Err(Weakness {
                what: format!(
                    "{beside:?} belongs to another user (uid {}), who may not write the database and can break its locks",
                    data.uid()
                ),
                advice: "delete it while no program uses the database".to_owned(),
            });
        }
    }
    Ok(())
}

/// Returns whether the owner of a file beside the database may write the database.
fn may_have_made(beside: Access, database: Access) -> bool {
    [0, geteuid().as_raw(), database.owner].contains(&beside.owner)
        || database.may(WRITE_OTHERS)
        || (database.may(WRITE_GROUP) && beside.group == database.group)
}

/// Refuses a folder if some of the users who may write it may not write the database.
fn check_folder(file: &Path, database: Access) -> Result<(), Weakness> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    let Ok(data) = fs::metadata(folder) else {
        return Ok(());
    };
    let access = Access::of(&data);
    let has_same_group = database.may(WRITE_GROUP) && database.group == access.group;
    // `useradd` makes a group of the same number for each user, with that user as the only member.
    let is_private_group = access.group == access.owner;
    let (users, chmod) = if database.may(WRITE_OTHERS) {
        return Ok(());
    } else if access.may(WRITE_OTHERS) {
        ("every user of this host".to_owned(), "o-w")
    } else if access.may(WRITE_GROUP) && !has_same_group && !is_private_group {
        (format!("every member of the group {}", access.group), "g-w")
    } else {
        return Ok(());
    };
    Err(Weakness {
        what: format!(
            "{users} may write the folder {folder:?}, and not the database {file:?}: such a user can break its locks by a file that SQLite reads there"
        ),
        advice: format!(
            "put the database in a folder of its own (mkdir -m 700), or `chmod {chmod} {}`",
            folder.display()
        ),
    })
}
