//! Checks, on opening, whether a server keeps locks correctly.
//!
//! CockroachDB, YugabyteDB and some poolers accept advisory locks without locking. So the session looks for its
//! own mark in `pg_locks`.

use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_remote::{Failure, nothing_granted};
use lockkeeper_sessions::SessionConnection as _;

use crate::connection::Connection;
use crate::failure::incompatible;
use crate::statements::{IDENTITY, MARKS, SessionId};

/// The topic of findings about the server's place among others.
pub(crate) const TOPOLOGY: &str = "topology";
/// The problem of a server that does not end silent sessions.
pub(crate) const NOT_KEPT: &str = "the server does not keep a session's own idle_session_timeout";
const IDLE: &str = "SELECT setting::int8 FROM pg_settings WHERE name = 'idle_session_timeout'";

/// Returns a row if the session's own lock ([`SessionId::mark`]) is there.
const OWN_MARK: &str = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted AND classid = $1::int8 AND objid = $2::int8 AND pid = $3::int4 AND pid = pg_backend_pid()";

/// Inspects the server.
///
/// # Errors
/// [`ErrorKind::Incompatible`](lockkeeper_core::ErrorKind::Incompatible) for a server on which locks would break.
pub(crate) fn inspect(connection: &mut Connection) -> Result<(), Error> {
    if connection.is_replica {
        return Err(incompatible(
            "this server is a replica, and its locks and its primary's never meet; connect to the primary",
        ));
    }
    let SessionId { pid, mark } = connection.session;
    let mark = connection.execute(OWN_MARK, &[&MARKS, &mark.cast_unsigned(), &pid]);
    if mark.map_err(nothing_granted)?.is_empty() {
        return Err(incompatible(
            "the server grants advisory locks, and its pg_locks has none of this session, so they exclude nobody; connect to PostgreSQL itself: some servers and pools that speak its protocol do not have these locks",
        ));
    }
    if !keeps_idle(connection).map_err(nothing_granted)? {
        return Err(incompatible(format!(
            "{NOT_KEPT}; a holder that has stopped would keep its lock"
        )));
    }
    Ok(())
}

/// Returns the identity of the database. `None` if the user has no permission to read it.
pub(crate) fn identity(connection: &mut Connection) -> Result<Option<String>, Error> {
    match connection.query(&format!("SELECT {IDENTITY}"), &[]) {
        Ok(row) => Ok(row.text(0).map(str::to_owned)),
        Err(Failure::Refused(_)) => Ok(None),
        Err(failure) => Err(nothing_granted(failure)),
    }
}

/// Returns whether the server ends the session of a silent holder, on which leases rely. Sets the default ttl,
/// so that it is not set again for the first lock.
pub(crate) fn keeps_idle(connection: &mut Connection) -> Result<bool, Failure> {
    const TTL: Duration = Duration::from_secs(30);
    connection.set_idle(TTL)?;
    let row = connection.query(IDLE, &[])?;
    Ok(row.number(0) == Some(TTL.as_millis()))
}
