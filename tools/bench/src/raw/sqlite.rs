//! SQLite: a row for each lock, in a file with the settings of the library.

use std::path::Path;

use rusqlite::{Connection, Statement, params};

use super::{Done, PIPELINE, Raw};

const HOST: &str = "3f0c8dbe-5d9b-4c3c-9a5e-0a4b7c1d2e3f/4026531836";

pub(crate) struct RawSqlite<'a> {
    connection: &'a Connection,
    insert: Statement<'a>,
    delete: Statement<'a>,
    epoch: i64,
    names: Vec<String>,
}

/// Creates a file with the table.
pub(crate) fn create(file: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // By default, malloc asks the kernel for memory in every statement.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.execute_batch(
        "CREATE TABLE lock(namespace TEXT, name TEXT, epoch INTEGER, pid INTEGER, start INTEGER, host TEXT,
            expires INTEGER, PRIMARY KEY(namespace, name)) WITHOUT ROWID",
    )?;
    Ok(connection)
}

impl<'a> RawSqlite<'a> {
    pub(crate) fn new(connection: &'a Connection) -> Done<Self> {
        Ok(Self {
            connection,
            insert: connection.prepare(
                "INSERT INTO lock VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING RETURNING epoch",
            )?,
            delete: connection
                .prepare("DELETE FROM lock WHERE namespace = ?1 AND name = ?2 AND epoch = ?3")?,
            epoch: 1 << 50,
            names: (0..PIPELINE)
                .map(|number| format!("seat:{number}"))
                .collect(),
        })
    }
}

fn insert(statement: &mut Statement<'_>, name: &str, epoch: i64) -> rusqlite::Result<i64> {
    let values = params!["default", name, epoch, 4711, 815, HOST, epoch];
    statement.query_row(values, |row| row.get(0))
}

fn delete(statement: &mut Statement<'_>, name: &str, epoch: i64) -> rusqlite::Result<usize> {
    statement.execute(params!["default", name, epoch])
}

impl Raw for RawSqlite<'_> {
    fn pair(&mut self) -> Done {
        self.epoch += 1;
        insert(&mut self.insert, "seat:42", self.epoch)?;
        delete(&mut self.delete, "seat:42", self.epoch)?;
        Ok(())
    }

    fn pairs(&mut self) -> Done<usize> {
        self.epoch += 1;
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        for name in &self.names {
            insert(&mut self.insert, name, self.epoch)?;
        }
        self.connection.execute_batch("COMMIT; BEGIN IMMEDIATE")?;
        for name in &self.names {
            delete(&mut self.delete, name, self.epoch)?;
        }
        self.connection.execute_batch("COMMIT")?;
        Ok(PIPELINE)
    }

    /// Does nothing: no server is asked.
    fn round_trip(&mut self) -> Done {
        Ok(())
    }
}
