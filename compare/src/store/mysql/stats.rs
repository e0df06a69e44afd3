//! What a MySQL or MariaDB server counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mysql::Conn;
use mysql::prelude::Queryable;

use super::client::MySqlConfig;
use super::tables::Rows;
use crate::error::Error;
use crate::meter::Counter;

/// Reads the server's status, on a connection of its own.
pub(crate) struct Stats<'a> {
    connection: Mutex<Conn>,
    /// Statements of this counter, which do not count.
    own: AtomicU64,
    /// Rows whose statements do not count.
    state: &'a Rows,
}

impl<'a> Stats<'a> {
    /// Counts statements, except those for `state`.
    pub(crate) fn open(config: &MySqlConfig, state: &'a Rows) -> Result<Self, Error> {
        Ok(Self {
            connection: Mutex::new(config.connect()?),
            own: AtomicU64::new(0),
            state,
        })
    }

    fn status(&self, name: &str) -> Result<u64, Error> {
        let connection = self.connection.lock();
        let mut connection = connection.unwrap_or_else(PoisonError::into_inner);
        self.own.fetch_add(1, Ordering::Relaxed);
        let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
        let row: Option<(String, u64)> = connection.query_first(sql)?;
        Ok(row.map_or(0, |(_, value)| value))
    }
}

impl Counter for Stats<'_> {
    fn commands(&self) -> Result<u64, Error> {
        let all = self.status("Questions")?;
        let uncounted = self.own.load(Ordering::Relaxed) + self.state.sent();
        Ok(all.saturating_sub(uncounted))
    }

    fn connections(&self) -> Result<u32, Error> {
        let all = self.status("Threads_connected")?;
        Ok(u32::try_from(all).unwrap_or(u32::MAX))
    }
}
