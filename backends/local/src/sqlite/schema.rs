//! The tables, and telling them from other people's.

use lockkeeper_core::{Error, ErrorKind};
use rusqlite::Connection;

use super::db::{failure, is_busy};

/// Marks a file as ours: "LkKp".
const APPLICATION_ID: i32 = 0x4c6b_4b70;
/// Grows when older programs could not use a file any more.
const VERSION: i32 = 1;

/// The row with the empty name, which no lock can have, keeps the last epoch of the whole file. It
/// lies in the same table so that a grant mostly writes one page.
///
/// A waiter's id never comes again, not even in a file that took the place of a deleted one: by it a
/// waiter knows its row.
///
/// `epoch` 0: nobody holds it, it is kept for the waiter `reserved`. `asked` and `expires` are the
/// host's clock in ns, see lockkeeper_core::SystemClock; `since` is Unix time in ms, for people.
const TABLES: &str = "
CREATE TABLE lock (
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
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
  PRIMARY KEY (namespace, name)
) WITHOUT ROWID;
INSERT INTO lock VALUES ('', '', 0, 0, 0, '', 0, 0, 0, 0, 0, 0, 0);
CREATE TRIGGER last_epoch AFTER INSERT ON lock BEGIN
  UPDATE lock SET epoch = NEW.epoch WHERE namespace = '' AND name = '';
END;
CREATE TABLE waiter (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  namespace TEXT NOT NULL,
  name TEXT NOT NULL,
  pid INTEGER NOT NULL,
  start INTEGER NOT NULL,
  place TEXT NOT NULL,
  wake TEXT NOT NULL,
  stale INTEGER NOT NULL
);
CREATE INDEX line ON waiter (namespace, name, stale, id);
INSERT INTO sqlite_sequence VALUES ('waiter', CAST(unixepoch('subsec') * 1000000 AS INTEGER));
";

/// What a file is to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Empty,
    Ours,
    Newer(i32),
    Other,
}

/// To be called in a transaction.
fn look(connection: &Connection) -> rusqlite::Result<Found> {
    let number = |sql: &str| connection.query_row(sql, (), |row| row.get::<_, i32>(0));
    let application = number("PRAGMA application_id")?;
    let version = number("PRAGMA user_version")?;
    let tables = number("SELECT count(*) FROM sqlite_master")?;
    Ok(match (application, version, tables) {
        (0, 0, 0) => Found::Empty,
        (APPLICATION_ID, VERSION, _) => Found::Ours,
        (APPLICATION_ID, other, _) => Found::Newer(other),
        _ => Found::Other,
    })
}

/// Why a step of the opening did not succeed.
pub(super) enum Trouble {
    /// Another process is at it: try again.
    Busy(rusqlite::Error),
    /// For good.
    Failed(Error),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        if is_busy(&error) {
            Self::Busy(error)
        } else {
            Self::Failed(failure(error))
        }
    }
}

/// Makes the connection ready, and the tables where there are none. A file that is not ours is
/// not written to.
pub(super) fn prepare(connection: &Connection) -> Result<(), Trouble> {
    // One snapshot: else a file that is being created by somebody else looks like neither.
    let snapshot = connection.unchecked_transaction()?;
    let found = look(connection)?;
    snapshot.rollback()?;
    refuse(found)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
    if mode != "wal" {
        return Err(Trouble::Failed(Error::new(
            ErrorKind::Incompatible,
            format!(
                "SQLite cannot use a write-ahead log here (it stays with {mode:?}); put the file on a local disk"
            ),
        )));
    }
    // The locks need not survive a power cut: nobody holds one then, and epochs come from the clock.
    connection.execute_batch("PRAGMA synchronous = NORMAL")?;
    if found == Found::Empty {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        let created = create(connection);
        let ended = if created.is_ok() {
            "COMMIT"
        } else {
            "ROLLBACK"
        };
        let ended = connection.execute_batch(ended);
        created?;
        ended?;
    }
    Ok(())
}

/// In a transaction: somebody may have done it in the meantime.
fn create(connection: &Connection) -> Result<(), Trouble> {
    let found = look(connection)?;
    refuse(found)?;
    if found == Found::Empty {
        connection.execute_batch(TABLES)?;
        connection.pragma_update(None, "user_version", VERSION)?;
        connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    }
    Ok(())
}

fn refuse(found: Found) -> Result<(), Error> {
    match found {
        Found::Empty | Found::Ours => Ok(()),
        Found::Newer(version) => Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "the lock database has schema {version}, and this program knows {VERSION}; upgrade the older programs that use it"
            ),
        )),
        Found::Other => Err(Error::new(
            ErrorKind::Incompatible,
            "the file is another application's database; give the locks a file of their own",
        )),
    }
}
