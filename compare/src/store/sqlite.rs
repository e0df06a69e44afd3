//! The state of `sqlite:`: a database file of its own, beside the file with the locks.

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;

use super::pool::{FEW, Pool};
use super::sql::{Rows, SqlConnection};
use crate::error::Error;

/// Far longer than a queue of single-row writes can take.
const BUSY_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates the file.
pub(crate) fn open(file: PathBuf) -> Result<Rows<Connection>, Error> {
    // Before the pool opens its connections: SQLite refuses to change the mode while others read.
    Connection::open(&file)?.pragma_update(None, "journal_mode", "WAL")?;
    let connect = move || {
        let connection = Connection::open(&file)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        // The file is thrown away, so it need not survive a power failure.
        connection.pragma_update(None, "synchronous", "OFF")?;
        Ok(connection)
    };
    let pool = Pool::open(FEW, connect)?;
    Ok(Rows::new(pool, "state"))
}

impl SqlConnection for Connection {
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const TABLE_OPTIONS: &'static str = "";

    fn change(&mut self, sql: &str) -> Result<bool, Error> {
        Ok(self.execute(sql, [])? > 0)
    }

    fn pair(&mut self, sql: &str) -> Result<(i64, i64), Error> {
        Ok(self.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?)
    }
}
