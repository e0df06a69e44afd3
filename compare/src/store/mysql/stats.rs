//! What a MySQL or MariaDB server counts.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use mysql::Conn;
use mysql::prelude::Queryable;

use super::{Door, Rows};
use crate::error::Failure;
use crate::meter::Counter;

/// Reads the server's status, on a connection of its own.
pub(crate) struct Stats<'a> {
    connection: Mutex<Conn>,
    /// What was asked here, which does not count.
    asked: AtomicU64,
    /// What was sent for these does not, either.
    state: &'a Rows,
}

impl<'a> Stats<'a> {
    /// Counts statements, less those for the `state`.
    pub(crate) fn open(door: &Door, state: &'a Rows) -> Result<Self, Failure> {
        Ok(Self {
            connection: Mutex::new(door.connect()?),
            asked: AtomicU64::new(0),
            state,
        })
    }

    fn status(&self, name: &str) -> Result<u64, Failure> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.asked.fetch_add(1, Ordering::Relaxed);
        let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
        let row: Option<(String, u64)> = connection.query_first(sql)?;
        Ok(row.map_or(0, |(_, value)| value))
    }
}

impl Counter for Stats<'_> {
    fn commands(&self) -> Result<u64, Failure> {
        let all = self.status("Questions")?;
        let not = self.asked.load(Ordering::Relaxed) + self.state.sent();
        Ok(all.saturating_sub(not))
    }

    fn connections(&self) -> Result<u32, Failure> {
        let all = self.status("Threads_connected")?;
        Ok(u32::try_from(all).unwrap_or(u32::MAX))
    }
}

impl fmt::Debug for Stats<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stats").finish_non_exhaustive()
    }
}
