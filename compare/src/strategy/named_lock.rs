//! `GET_LOCK` and `RELEASE_LOCK`: MySQL's named locks, as the write-up uses them.

use std::time::Duration;

use mysql::Conn;
use mysql::prelude::Queryable;

use super::session_lock::{LockServer, LockSession};
use crate::error::Error;
use crate::store::mysql::MySqlConfig;

impl LockServer for MySqlConfig {
    type Session = Conn;

    fn open_session(&self) -> Result<Conn, Error> {
        self.connect()
    }

    fn end(&self, sessions: &[u32]) -> Result<(), Error> {
        let mut connection = self.connect()?;
        for id in sessions {
            // It may have ended by itself.
            let _ = connection.query_drop(format!("KILL {id}"));
        }
        Ok(())
    }
}

impl LockSession for Conn {
    fn id(&self) -> u32 {
        self.connection_id()
    }

    fn lock(&mut self, name: &str, wait: Duration) -> Result<bool, Error> {
        // MySQL knows whole seconds only.
        let wait = wait.as_secs_f64().ceil();
        let granted = self.query_first(format!("SELECT GET_LOCK('{name}', {wait})"))?;
        // NULL: the wait was ended.
        Ok(granted == Some(Some(1)))
    }

    fn unlock(&mut self, name: &str) -> Result<(), Error> {
        Ok(self.query_drop(format!("SELECT RELEASE_LOCK('{name}')"))?)
    }
}
