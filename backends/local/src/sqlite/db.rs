//! Statements and transactions on the connection of a provider, and retries while another process
//! writes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant, SystemClock};
use rusqlite::{Connection, ErrorCode, Params, Row};

use super::connection::Slot;
use super::schema::AttemptError;

/// The limit for opening. Many processes may create one file at once, one after the other.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit for one attempt to wait for other writers. A write takes some microseconds, but a busy
/// machine may suspend the writer.
pub(super) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(250);
/// The limit for an attempt whose deadline has passed.
const LAST_ATTEMPT_TIMEOUT: Duration = Duration::from_millis(100);

const FIRST_PAUSE: Duration = Duration::from_micros(20);
const MAX_PAUSE: Duration = Duration::from_millis(1);
const YIELDS: u32 = 4;

pub(super) struct Db {
    slot: Arc<Slot>,
    /// Whether a deleted file is created again.
    create: bool,
    statements: AtomicU64,
}

/// The limit for retries while other processes write.
pub(super) struct Patience<'a> {
    pub(super) clock: &'a dyn Clock,
    pub(super) until: HostInstant,
    pub(super) is_cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Patience<'a> {
    /// Retries until `deadline`, or for [`ATTEMPT_TIMEOUT`].
    pub(super) fn new(clock: &'a dyn Clock, deadline: Option<HostInstant>) -> Self {
        let now = clock.now();
        Self {
            clock,
            until: deadline.map_or(now + ATTEMPT_TIMEOUT, |deadline| {
                deadline.max(now + LAST_ATTEMPT_TIMEOUT)
            }),
            is_cancelled: &|| false,
        }
    }

    /// Runs `attempt` until it succeeds, fails for good, or the limit is reached.
    fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T, AttemptError>) -> Result<T, Error> {
        let mut tries = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(AttemptError::Busy(_)) if self.pause(tries) => tries = tries.saturating_add(1),
                Err(AttemptError::Busy(error)) => return Err(convert_error(error)),
                Err(AttemptError::Failed(error)) => return Err(error),
            }
        }
    }

    /// Pauses before the next attempt. Returns `false` if the limit is reached.
    fn pause(&self, tries: u32) -> bool {
        if (self.is_cancelled)() {
            return false;
        }
        let left = self.until.saturating_since(self.clock.now());
        if left.is_zero() {
            return false;
        }
        if tries < YIELDS {
            std::thread::yield_now();
        } else {
            let pause = FIRST_PAUSE.saturating_mul(1 << (tries - YIELDS).min(10));
            // With jitter, so that writers that collided once do not collide again.
            let pause = pause.min(MAX_PAUSE).mul_f64(0.5 + fastrand::f64() / 2.0);
            std::thread::sleep(pause.min(left));
        }
        true
    }
}

impl Db {
    /// Opens the database at `path`. Without `create`, a missing file is an error.
    pub(super) fn open(path: &Path, create: bool, clock: &dyn Clock) -> Result<Self, Error> {
        // The clock of a test may stand still.
        let mut patience = Patience::new(&SystemClock, None);
        patience.until = SystemClock.now() + OPEN_TIMEOUT;
        Ok(Self {
            slot: patience.retry(|| Slot::open(path, create, clock.now()))?,
            create,
            statements: AtomicU64::new(0),
        })
    }

    /// Returns the path without links.
    pub(super) fn path(&self) -> &Path {
        &self.slot.path
    }

    pub(super) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Runs `work`, and retries while another process writes. Between retries, other threads may use the
    /// connection.
    pub(super) fn run<T>(
        &self,
        patience: &Patience<'_>,
        mut work: impl FnMut(&Session<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        patience.retry(|| {
            let done = self
                .slot
                .with(self.create, patience.clock.now(), |connection| {
                    let session = Session {
                        connection,
                        statements: &self.statements,
                    };
                    session
                        .roll_back_open_transaction()
                        .and_then(|()| work(&session))
                });
            Ok(done??)
        })
    }

    /// Runs `work` like [`run`](Self::run), in a transaction that writes from its start: a transaction
    /// that begins to write later fails if another process wrote in between.
    pub(super) fn transact<T>(
        &self,
        patience: &Patience<'_>,
        mut work: impl FnMut(&Session<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.run(patience, |session| {
            session.change("BEGIN IMMEDIATE", ())?;
            let value = work(session)?;
            session.change("COMMIT", ())?;
            Ok(value)
        })
    }
}

/// The connection, while this thread uses it.
pub(super) struct Session<'a> {
    connection: &'a Connection,
    statements: &'a AtomicU64,
}

impl Session<'_> {
    /// Rolls back a transaction that an error or a panic left open.
    fn roll_back_open_transaction(&self) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.change("ROLLBACK", ())?;
        }
        Ok(())
    }

    /// Runs a statement, and returns the number of changed rows.
    pub(super) fn change(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        self.connection.prepare_cached(sql)?.execute(params)
    }

    /// Runs a statement to its end, and returns its first row. A writing statement commits, and reports
    /// an error, only at its end.
    pub(super) fn first<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let value = rows.next()?.map(read).transpose()?;
        while rows.next()?.is_some() {}
        Ok(value)
    }

    /// Runs a statement, and returns all rows.
    pub(super) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Vec<T>> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(read(row)?);
        }
        Ok(all)
    }

    pub(super) fn last_id(&self) -> i64 {
        self.connection.last_insert_rowid()
    }
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
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
    if error.kind() == ErrorKind::Unknown {
        return error;
    }
    Error::new(ErrorKind::Unknown, error.message()).with_source(error)
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn sqlite_errors_have_the_kind_that_says_what_to_do() {
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
