//! Errors of SQLite and of lock files, in the terms of the contract.

use lockkeeper_core::{Error, ErrorKind};
use rusqlite::ErrorCode;

/// The error of one attempt to use the database.
pub(super) enum AttemptError {
    /// Another process has locked the database; another attempt may succeed.
    Busy(rusqlite::Error),
    /// Another attempt would fail as well.
    Failed(Error),
}

impl From<Error> for AttemptError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<rusqlite::Error> for AttemptError {
    fn from(error: rusqlite::Error) -> Self {
        if is_busy(&error) {
            Self::Busy(error)
        } else {
            Self::Failed(convert_error(error))
        }
    }
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                // SQLite lost a race for the locks of its log many times in a row.
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}

/// Converts an error of SQLite.
pub(super) fn convert_error(error: rusqlite::Error) -> Error {
    let (kind, message) = match error.sqlite_error_code() {
        _ if is_busy(&error) => (
            ErrorKind::Unavailable,
            "another process keeps the database locked; look for one that is stopped or has an open write transaction",
        ),
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => (
            ErrorKind::PermissionDenied,
            "the database cannot be written; give this user write permission for the file and its folder",
        ),
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            ErrorKind::Incompatible,
            "the file is not an intact SQLite database; name another file, or delete it while no program uses it if it is a damaged lock database",
        ),
        Some(ErrorCode::OperationInterrupted) => (
            ErrorKind::Unavailable,
            "a statement did not end in time, and was interrupted; look for a trigger in the file that is not lockkeeper's",
        ),
        Some(ErrorCode::DiskFull) => (
            ErrorKind::Unavailable,
            "the disk is full; make room for the lock database",
        ),
        Some(ErrorCode::CannotOpen | ErrorCode::OutOfMemory) => (
            ErrorKind::Unavailable,
            "the database cannot be opened now; see the cause",
        ),
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unknown,
            "the file system failed while the database was used; see the cause",
        ),
        _ => (
            ErrorKind::Incompatible,
            "the database does not work as a lock database; see the cause",
        ),
    };
    Error::new(kind, message).with_source(error)
}

/// Returns the error for a file or a location that cannot have a lock database.
pub(super) fn incompatible(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Incompatible, message)
}

/// Converts the error of a renewal or release: a failed one may have taken effect.
pub(super) fn unknown(error: Error) -> Error {
    error.with_kind(ErrorKind::Unknown)
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn errors_of_sqlite_have_their_kind() {
        for (code, kind, busy) in [
            (ffi::SQLITE_READONLY, ErrorKind::PermissionDenied, false),
            (ffi::SQLITE_IOERR, ErrorKind::Unknown, false),
            (ffi::SQLITE_PROTOCOL, ErrorKind::Unavailable, true),
        ] {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(is_busy(&error), busy, "{error}");
            assert_eq!(convert_error(error).kind(), kind, "code {code}");
        }
    }
}
