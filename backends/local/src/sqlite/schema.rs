//! The tables of a lock database, and how a lock database is recognised.

use lockkeeper_core::Error;
use rusqlite::Connection;

use super::error::{AttemptError, incompatible};

/// Identifies a lock database: "LkKp".
const APPLICATION_ID: i32 = 0x4c6b_4b70;
/// Increases when older programs cannot use a new file.
const VERSION: i32 = 3;

/// The tables.
///
/// The row with the empty name, which no lock can have, contains the last epoch of the file. It is in
/// the same table so that a grant usually writes one page.
///
/// The id of a waiter is never used again, even in a file that replaced a deleted one: waiters
/// recognise their rows by it.
///
/// A row of `lock` is a holder of a lock (`permits` 0) or a permit of the semaphore of that name (`permits`
/// 1). Shared holders and permits have a slot each. `mode` is 0 for an exclusive lock, -1 for a shared one,
/// and the limit of a semaphore. A row with `epoch` 0 reserves its slot for the waiter `reserved`. `asked`
/// and `expires` are times of `lockkeeper_core::SystemClock` in ns; `since` is Unix time in ms. `place` is
/// the pid scope of a process, and `label` what it is called.
const TABLES: &str = "
CREATE TABLE lock (
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  permits INTEGER NOT NULL,
  slot INTEGER NOT NULL,
  mode INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  pid INTEGER NOT NULL,
  start INTEGER NOT NULL,
  place TEXT NOT NULL,
  process INTEGER NOT NULL,
  request INTEGER NOT NULL,
  since INTEGER NOT NULL,
  asked INTEGER NOT NULL,
  expires INTEGER NOT NULL,
  contended INTEGER NOT NULL,
  reserved INTEGER NOT NULL,
  label TEXT,
  PRIMARY KEY (namespace, name, permits, slot)
) WITHOUT ROWID;
INSERT INTO lock VALUES ('', '', 0, 0, 0, 0, 0, 0, '', 0, 0, 0, 0, 0, 0, 0, NULL);
CREATE TRIGGER last_epoch AFTER INSERT ON lock WHEN NEW.epoch > 0 BEGIN
  UPDATE lock SET epoch = NEW.epoch WHERE namespace = '' AND name = '' AND permits = 0 AND slot = 0;
END;
CREATE TABLE waiter (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  permits INTEGER NOT NULL,
  mode INTEGER NOT NULL,
  pid INTEGER NOT NULL,
  start INTEGER NOT NULL,
  place TEXT NOT NULL,
  wake TEXT NOT NULL,
  stale INTEGER NOT NULL
);
CREATE INDEX line ON waiter (namespace, name, permits, stale, id);
INSERT INTO sqlite_sequence VALUES ('waiter', CAST(unixepoch('subsec') * 1000000 AS INTEGER));
";

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileKind {
    Empty,
    Ours,
    Older(i32),
    Newer(i32),
    Other,
}

/// Reads the kind of the open file, in a transaction of the caller.
fn file_kind(connection: &Connection) -> rusqlite::Result<FileKind> {
    let number = |sql: &str| connection.query_row(sql, (), |row| row.get::<_, i32>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_master")?;
    Ok(match (application, version, tables) {
        (0, 0, 0) => FileKind::Empty,
        (APPLICATION_ID, VERSION, _) => FileKind::Ours,
        (APPLICATION_ID, older, _) if older < VERSION => FileKind::Older(older),
        (APPLICATION_ID, newer, _) => FileKind::Newer(newer),
        _ => FileKind::Other,
    })
}

/// Prepares the connection, and creates the tables in an empty file. Does not write to the database of
/// another application. Returns whether the tables were created.
pub(super) fn prepare(connection: &Connection) -> Result<bool, AttemptError> {
    // What another program put into the schema runs no function with effects.
    connection.execute_batch("PRAGMA trusted_schema = OFF")?;
    // One snapshot, in which the tables of another process are complete or missing.
    let snapshot = connection.unchecked_transaction()?;
    let found = file_kind(connection)?;
    snapshot.rollback()?;
    check_kind(found)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
    if mode != "wal" {
        return Err(AttemptError::Failed(incompatible(format!(
            "SQLite cannot use a write-ahead log here (it stays with {mode:?}); put the file on a local disk"
        ))));
    }
    // Locks need not survive a power failure, which ends all holders; epochs come from the clock.
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    // SQLite can undo a single statement of a transaction, for which it keeps a journal in a temporary file.
    // By default that takes a block of 64 KB for each grant of a batch. The allocator gets the block from
    // the kernel and returns it, which took a third of a batch's CPU time.
    connection.execute_batch("PRAGMA temp_store = MEMORY")?;
    if found != FileKind::Empty {
        return Ok(false);
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let created = create(connection);
    let ended = if created.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK"
    };
    let ended = connection.execute_batch(ended);
    let is_new = created?;
    ended?;
    Ok(is_new)
}

/// Creates the tables in a transaction, unless another process has created them in the meantime.
fn create(connection: &Connection) -> Result<bool, AttemptError> {
    let found = file_kind(connection)?;
    check_kind(found)?;
    let is_new = found == FileKind::Empty;
    if is_new {
        connection.execute_batch(TABLES)?;
        connection.pragma_update(None, "user_version", VERSION)?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    Ok(is_new)
}

fn check_kind(found: FileKind) -> Result<(), Error> {
    match found {
        FileKind::Empty | FileKind::Ours => Ok(()),
        FileKind::Older(version) => Err(incompatible(format!(
            "the lock database has schema {version}, and this program knows {VERSION}; stop the older programs that use it, upgrade them and delete it: it contains nothing but locks"
        ))),
        FileKind::Newer(version) => Err(incompatible(format!(
            "the lock database has schema {version}, and this program knows {VERSION}; upgrade this program"
        ))),
        FileKind::Other => Err(incompatible(
            "the file is another application's database; give the locks a file of their own",
        )),
    }
}
