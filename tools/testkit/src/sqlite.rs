//! A SQLite file under test, which is broken by means of SQLite itself.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;

use crate::test_server::{EndFault, Facts, TestServer, not_held, repeat};

/// How long the write lock is waited for.
const BUSY: Duration = Duration::from_secs(30);

pub(crate) fn start() -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(SqliteFile::new()?))
}

/// A file in a throw-away folder.
#[derive(Debug)]
pub struct SqliteFile {
    folder: TempDir,
}

impl SqliteFile {
    /// Makes the folder. The first keeper makes the file.
    ///
    /// # Errors
    /// There is no folder for temporary files.
    pub fn new() -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("lk-").tempdir()?;
        Ok(Self { folder })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    /// Opens a connection beside those of the keepers, which waits for the write lock for up to 30 s.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn connect(&self) -> io::Result<Connection> {
        let connection = Connection::open(self.path()).map_err(io::Error::other)?;
        connection.busy_timeout(BUSY).map_err(io::Error::other)?;
        Ok(connection)
    }
}

/// Starts a write transaction.
fn begin(writer: &Connection) -> io::Result<()> {
    writer
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(io::Error::other)
}

fn end(writer: &Connection) -> io::Result<()> {
    writer.execute_batch("ROLLBACK").map_err(io::Error::other)
}

impl TestServer for SqliteFile {
    fn facts(&self) -> Facts {
        Facts {
            tells_of_wipe: false,
            ..Facts::ROWS
        }
    }

    fn url(&self) -> String {
        format!("sqlite:{}?", self.path().display())
    }

    /// Resets the tables to those of a new file.
    fn wipe(&self) -> io::Result<()> {
        let wipe = "BEGIN IMMEDIATE;
            DELETE FROM waiter; DELETE FROM lock WHERE name <> ''; UPDATE lock SET epoch = 0;
            COMMIT;";
        self.connect()?
            .execute_batch(wipe)
            .map_err(io::Error::other)
    }

    /// Starts a write transaction that does not end.
    fn cut_off(self: Arc<Self>) -> io::Result<EndFault> {
        let writer = self.connect()?;
        begin(&writer)?;
        Ok(Box::new(move || end(&writer)))
    }

    /// Starts a write transaction of this length repeatedly.
    fn slow_down(self: Arc<Self>, by: Duration) -> io::Result<EndFault> {
        let first = Arc::new(Mutex::new(self.connect()?));
        let second = Arc::clone(&first);
        let on = |writer: &Mutex<Connection>, act: fn(&Connection) -> io::Result<()>| {
            act(&writer
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner))
        };
        // The pause lets the keepers write.
        repeat(
            by,
            by / 10,
            move || on(&first, begin),
            move || on(&second, end),
        )
    }

    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        let sql = "DELETE FROM lock WHERE namespace = ?1 AND name = ?2";
        let ended = self.connect()?.execute(sql, (namespace, name));
        match ended.map_err(io::Error::other)? {
            1 => Ok(()),
            _ => Err(not_held(name)),
        }
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        let sql = "SELECT count(*) FROM waiter WHERE namespace = ?1 AND name = ?2";
        let count = |connection: Connection| -> rusqlite::Result<u32> {
            connection.query_row(sql, (namespace, name), |row| row.get(0))
        };
        let count = count(self.connect()?).map_err(io::Error::other)?;
        usize::try_from(count).map_err(io::Error::other)
    }

    /// Returns the rows. Sockets for notifications stay with their provider, which uses them again.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let sql = "SELECT 'lock ' || namespace || ' ' || name FROM lock WHERE name <> ''
            UNION ALL SELECT 'waiter ' || namespace || ' ' || name FROM waiter";
        let rows = |connection: Connection| -> rusqlite::Result<Vec<String>> {
            let mut statement = connection.prepare(sql)?;
            let rows = statement.query_map((), |row| row.get(0))?;
            rows.collect()
        };
        rows(self.connect()?).map_err(io::Error::other)
    }
}
