//! Locks of sessions, but out of the pool that the application works with: ten connections, as
//! HikariCP and r2d2 have them by default.
//!
//! Ten threads take all of them, one to hold the lock and nine to wait for it. The thread that holds
//! it needs a second connection for its work, and there is none: it waits until its time is up, and
//! so do all others. That is why the write-up, and this library, give locks a pool of their own.

use std::sync::Arc;
use std::time::Duration;

use super::session_lock::{LockServer, LockSession, SessionLock};
use super::transaction::Locked;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::pool::{APPLICATION, Pool};
use crate::store::sql::{Rows, SqlConnection};

/// How long the application waits for a connection before the request fails. HikariCP's 30 s do the
/// same, only later.
const POOL_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens the pool, for locks and work.
pub(super) fn open<S>(
    server: &S,
    rows: &Rows<S::Session>,
    cancel: &Cancellation,
) -> Result<Locked, Error>
where
    S: LockServer<Session: LockSession + SqlConnection>,
{
    let connect = server.clone();
    let pool = Arc::new(Pool::open(APPLICATION, move || connect.open_session())?);
    let rows = rows.through(&pool, POOL_TIMEOUT);
    let lock = SessionLock::on(server, pool, POOL_TIMEOUT, cancel);
    Ok(Locked::new(Box::new(lock), Arc::new(rows)))
}
