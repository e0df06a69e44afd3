//! Requests of this store that were not answered, and the names that the server may have granted to them:
//! such a name is not busy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lockkeeper_remote::Failure;
use parking_lot::Mutex;

use crate::connection::{Connection, LockReply};
use crate::names::EncodedName;
use crate::statements::{self, SessionId};
use crate::store::Store;

/// How many abandoned sessions are remembered.
const MOST_ABANDONED: usize = 100;
/// The longest time that a server may take to begin with a statement that it received.
const STALL: Duration = Duration::from_secs(60);

/// Sessions whose connection was closed while a reply was missing, and until when each may hold the
/// name that it asked for: the server frees that when it notices.
#[derive(Debug, Default)]
pub(crate) struct AbandonedSessions(Mutex<VecDeque<(SessionId, Instant)>>);

impl AbandonedSessions {
    pub(crate) fn add(&self, session: SessionId, idle: Duration) {
        let mut abandoned = self.0.lock();
        abandoned.truncate(MOST_ABANDONED);
        abandoned.push_front((session, Instant::now() + idle + STALL));
    }

    /// Returns whether the server may still hold something for such a session.
    fn any(&self) -> bool {
        let mut abandoned = self.0.lock();
        let now = Instant::now();
        abandoned.retain(|(_, until)| now < *until);
        !abandoned.is_empty()
    }

    /// Returns whether a session, as the server names it, is one of them.
    fn has(&self, session: SessionId) -> bool {
        let abandoned = self.0.lock();
        abandoned.iter().any(|(known, _)| known.is(session))
    }
}

/// Tries to take a name on a connection. Busy means that another process or guard holds it.
pub(crate) fn try_lock(
    store: &Store,
    connection: &mut Connection,
    name: &EncodedName,
) -> Result<LockReply, Failure> {
    let unclaimed = store.sessions.unclaimed(name, connection.session());
    match connection.try_lock(name)? {
        LockReply::Busy => confirm_busy(store, connection, name, unclaimed),
        reply => Ok(reply),
    }
}

/// Finds out whether another process or guard holds a name that the server did not grant to this
/// connection, or an earlier request of this store that was not answered. Costs a statement only while
/// there is such a request.
///
/// `unclaimed` is the answer of [`Sessions::unclaimed`](crate::sessions::Sessions::unclaimed) from before
/// the server was asked: such a request may have held the name then, and have given it back before the
/// reply was here.
pub(crate) fn confirm_busy(
    store: &Store,
    connection: &mut Connection,
    name: &EncodedName,
    unclaimed: Vec<SessionId>,
) -> Result<LockReply, Failure> {
    let abandoned = &store.connector.abandoned;
    let mut own = unclaimed;
    own.extend(store.sessions.unclaimed(name, connection.session()));
    if own.is_empty() && !abandoned.any() {
        return Ok(LockReply::Busy);
    }
    let Some(holder) = connection.holder(name)? else {
        // The name is free by now, so the holder may have been such a request.
        return Ok(LockReply::Abandoned);
    };
    if abandoned.has(holder) {
        return match connection.run(&statements::end_holder(name, holder)) {
            // Refused: the session has ended by itself.
            Ok(()) | Err(Failure::Refused(_)) => Ok(LockReply::Abandoned),
            Err(failure) => Err(failure),
        };
    }
    let is_own = own.iter().any(|session| session.is(holder));
    Ok(if is_own {
        LockReply::Abandoned
    } else {
        LockReply::Busy
    })
}
