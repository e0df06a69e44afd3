//! Locks of sessions on the connections of the application's own pool. It has ten connections, the
//! default of HikariCP and r2d2.
//!
//! Ten threads take all connections: one holds the lock, and nine wait for it. The holder needs a
//! second connection for its work, and none is free. All ten wait until they time out. So the
//! write-up and this library give locks a pool of their own.

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
