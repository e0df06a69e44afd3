//! The file of `--status-file`: whether an exit status is the command's, or that of lockkeeper.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use super::stderr;
use crate::failure::Failure;

/// By whom an exit status is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Command,
    Lockkeeper,
}

/// Empties the file. An error prevents the command from being started.
pub(super) fn clear(file: &Path) -> Result<(), Failure> {
    fs::write(file, "").map_err(|error| Failure::system(&format!("write {file:?}"), &error))
}

/// Writes a status, unless the process that could not become the command has written its own.
pub(super) fn write(file: &OsStr, origin: Origin, code: u8) {
    let file = Path::new(file);
    let written = match fs::metadata(file).map(|data| data.len()) {
        Ok(0) | Err(_) => save(file, origin, code),
        Ok(_) => Ok(()),
    };
    if let Err(error) = written {
        stderr::warn(&format!("cannot write {file:?}: {error}"));
    }
}

fn save(file: &Path, origin: Origin, code: u8) -> io::Result<()> {
    let origin = match origin {
        Origin::Command => "command",
        Origin::Lockkeeper => "lockkeeper",
    };
    fs::write(file, format!("{origin} {code}\n"))
}
