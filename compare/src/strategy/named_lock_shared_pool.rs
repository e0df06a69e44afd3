//! The same named locks, but out of the pool that the application works with: ten connections, as
//! HikariCP has them where nobody says another number.
//!
//! Ten threads take them all, one to hold the lock and nine to wait for it. The one that holds it
//! needs a second connection for its work, and there is none: it waits until its own time is up,
//! and so does everybody else. That is why the write-up, and this library, give locks a pool of
//! their own.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::CancelToken;

use super::lock::Lock;
use super::named_lock::NamedLock;
use super::transaction::{Job, Locked, Outcome, Strategy};
use crate::error::Failure;
use crate::store::mysql::{Door, Rows, Tables};

/// How long the application waits for a connection before the request fails. HikariCP's 30 s are
/// the same thing, only later.
const PATIENCE: Duration = Duration::from_secs(1);

/// The lock alone.
pub(super) fn lock(door: &Door, stop: &CancelToken) -> Result<NamedLock, Failure> {
    let pool = door.pool(Tables::POOL, Tables::POOL)?;
    Ok(NamedLock::on(door, &pool, PATIENCE, stop))
}

/// Locks and work out of one pool.
#[derive(Debug)]
pub(crate) struct SharedPool(Locked<NamedLock>);

impl SharedPool {
    /// Opens the pool.
    pub(crate) fn open(door: &Door, rows: &Rows, stop: &CancelToken) -> Result<Self, Failure> {
        let pool = door.pool(Tables::POOL, Tables::POOL)?;
        let lock = NamedLock::on(door, &pool, PATIENCE, stop);
        let rows = rows.through(&pool, PATIENCE);
        Ok(Self(Locked::new(lock, Arc::new(rows))))
    }
}

impl Strategy for SharedPool {
    fn update(&self, job: &Job<'_>) -> Result<Outcome, Failure> {
        match self.0.update(job) {
            Err(Failure::Starved(why)) => Ok(Outcome::Broken(why)),
            result => result,
        }
    }

    fn lock(&self) -> Option<&dyn Lock> {
        self.0.lock()
    }
}
