//! `pg_advisory_lock` and `pg_advisory_unlock`: what PostgreSQL has for named locks. Its names are numbers, so a
//! name is hashed.

use std::time::Duration;

use lockkeeper::backends::postgres::{PlainClient, PlainError};

use super::session_lock::{LockServer, LockSession};
use crate::error::Error;
use crate::store::postgres::{PostgresConfig, TIMEOUT};

impl LockServer for PostgresConfig {
    type Session = PlainClient;

    fn open_session(&self) -> Result<PlainClient, Error> {
        self.connect()
    }

    fn end(&self, sessions: &[u32]) -> Result<(), Error> {
        let mut client = self.connect()?;
        for id in sessions {
            // It may have ended by itself.
            let _ = client.run(&format!("SELECT pg_terminate_backend({id})"), TIMEOUT);
        }
        Ok(())
    }
}

impl LockSession for PlainClient {
    fn id(&self) -> u32 {
        self.pid().unsigned_abs()
    }

    fn lock(&mut self, name: &str, wait: Duration) -> Result<bool, Error> {
        let key = key(name);
        if wait.is_zero() {
            let reply = self.run(&format!("SELECT pg_try_advisory_lock({key})"), TIMEOUT)?;
            return Ok(reply.rows == [[Some("t".to_owned())]]);
        }
        let limit = wait.as_millis();
        let sql = format!("SET lock_timeout = {limit}; SELECT pg_advisory_lock({key})");
        match self.run(&sql, wait + TIMEOUT) {
            Ok(_) => Ok(true),
            Err(PlainError::LockTimeout) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn unlock(&mut self, name: &str) -> Result<(), Error> {
        let key = key(name);
        self.run(&format!("SELECT pg_advisory_unlock({key})"), TIMEOUT)?;
        Ok(())
    }
}

fn key(name: &str) -> String {
    format!("hashtextextended('{name}', 0)")
}
