//! The one connection of a provider: statements, transactions, and waiting while another process
//! writes.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant, SystemClock};
use rusqlite::{Connection, ErrorCode, Params, Row};

use super::schema::Trouble;
use super::slot::Slot;

/// Many processes may create one file at once, and each step excludes the others.
const OPENING: Duration = Duration::from_secs(5);
/// What a single attempt may wait for other writers, each of which takes some microseconds, but
/// can be put aside by a busy machine while it writes.
pub(super) const ATTEMPT: Duration = Duration::from_millis(250);
/// The same for the last look of a wait that is over.
const LAST_LOOK: Duration = Duration::from_millis(100);

const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
const YIELDS: u32 = 4;

pub(super) struct Db {
    slot: Arc<Slot>,
    /// Whether a file that was deleted is made again.
    create: bool,
    statements: AtomicU64,
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").finish_non_exhaustive()
    }
}

/// Until when to try, while other processes write.
pub(super) struct Patience<'a> {
    pub(super) clock: &'a dyn Clock,
    pub(super) until: HostInstant,
    pub(super) is_cancelled: &'a dyn Fn() -> bool,
}

impl<'a> Patience<'a> {
    /// Until `deadline`, or as long as a single attempt may take.
    pub(super) fn new(clock: &'a dyn Clock, deadline: Option<HostInstant>) -> Self {
        let now = clock.now();
        Self {
            clock,
            until: deadline.map_or(now + ATTEMPT, |deadline| deadline.max(now + LAST_LOOK)),
            is_cancelled: &|| false,
        }
    }

    /// Tries until it is done, fails, or the time is up.
    fn retry<T>(&self, mut attempt: impl FnMut() -> Result<T, Trouble>) -> Result<T, Error> {
        let mut tries = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Trouble::Busy(_)) if self.pause(tries) => tries = tries.saturating_add(1),
                Err(Trouble::Busy(error)) => return Err(failure(error)),
                Err(Trouble::Failed(error)) => return Err(error),
            }
        }
    }

    /// Waits before the next try. False: no more of them.
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
            // Writers that met once should not meet again.
            let pause = pause
                .min(LONGEST_PAUSE)
                .mul_f64(0.5 + fastrand::f64() / 2.0);
            std::thread::sleep(pause.min(left));
        }
        true
    }
}

impl Db {
    /// Opens the database at `path`. Without `create`, one that is not there is an error.
    pub(super) fn open(path: &Path, create: bool, clock: &dyn Clock) -> Result<Self, Error> {
        // On a clock of its own, as a test has, nobody's time would pass.
        let mut patience = Patience::new(&SystemClock, None);
        patience.until = SystemClock.now() + OPENING;
        Ok(Self {
            slot: patience.retry(|| Slot::open(path, create, clock.now()))?,
            create,
            statements: AtomicU64::new(0),
        })
    }

    /// Where it really is.
    pub(super) fn path(&self) -> &Path {
        &self.slot.path
    }

    pub(super) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Runs `work`, again and again while another process writes. Other threads get the connection
    /// in between.
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
                    session.settle().and_then(|()| work(&session))
                });
            Ok(done??)
        })
    }

    /// The same in one write transaction. It begins as one: a transaction that becomes a writer
    /// later fails where another one wrote in between.
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

/// The connection, while this thread has it.
pub(super) struct Session<'a> {
    connection: &'a Connection,
    statements: &'a AtomicU64,
}

impl Session<'_> {
    /// Ends a transaction that an error (or a panic) left open.
    fn settle(&self) -> rusqlite::Result<()> {
        if !self.connection.is_autocommit() {
            self.change("ROLLBACK", ())?;
        }
        Ok(())
    }

    /// Runs a statement and says how many rows it changed.
    pub(super) fn change(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.statements.fetch_add(1, Ordering::Relaxed);
        self.connection.prepare_cached(sql)?.execute(params)
    }

    /// The first row of a statement that is run to its end: only there does a writing statement
    /// commit, and say whether it did.
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

    /// All rows of a statement.
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
                // SQLite lost a race for the locks of its log, many times in a row.
                | ErrorCode::FileLockingProtocolFailed
        )
    )
}

/// What SQLite says, in the contract's kinds.
pub(super) fn failure(error: rusqlite::Error) -> Error {
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
            "the file is not a whole SQLite database; name another file; if it is a lock database that was damaged, delete it while nobody uses it",
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

/// A renewal or release that failed may have happened or not, whatever it failed of.
pub(super) fn unknown(error: Error) -> Error {
    if error.kind() == ErrorKind::Unknown {
        return error;
    }
    Error::new(ErrorKind::Unknown, error.message()).with_source(error)
}
