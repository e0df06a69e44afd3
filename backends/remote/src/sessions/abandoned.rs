//! Requests of this store that were not answered, and the names that the server may have granted to them:
//! such a name is not busy.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lockkeeper_core::Error;
use parking_lot::Mutex;

use crate::failure::Failure;

use super::Sessions;
use super::connection::SessionConnection;
use super::requests::Attempted;

/// How many abandoned sessions are remembered.
const MOST_ABANDONED: usize = 100;
/// The longest time that a server may take to begin with a statement that it received.
const STALL: Duration = Duration::from_secs(60);

/// The sessions of connections that were closed before a reply came. Each is kept for as long as it may
/// hold the name that it requested: the server frees the name when it notices the closed connection.
#[derive(Debug)]
pub(crate) struct AbandonedSessions<I>(Mutex<VecDeque<(I, Instant)>>);

impl<I> Default for AbandonedSessions<I> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<I: Copy> AbandonedSessions<I> {
    pub(crate) fn add(&self, session: I, idle: Duration) {
        let mut abandoned = self.0.lock();
        abandoned.truncate(MOST_ABANDONED);
        abandoned.push_front((session, Instant::now() + idle + STALL));
    }

    /// Returns the sessions for which the server may still hold something.
    fn current(&self) -> Vec<I> {
        let mut abandoned = self.0.lock();
        let now = Instant::now();
        abandoned.retain(|(_, until)| now < *until);
        abandoned.iter().map(|(session, _)| *session).collect()
    }
}

/// Finds out whether another process or guard holds a name that the server did not grant to this
/// connection. Costs a statement only while a request of this store is not answered. A failure within says that
/// the holder may be such a request; the connection is as good as before.
///
/// `unclaimed` is the answer of [`Sessions::unclaimed`] from before the attempt. Such a request may have held the
/// name then, and have given it back before the reply was here.
pub(crate) fn confirm_busy<C: SessionConnection>(
    sessions: &Sessions<C>,
    connection: &mut C,
    name: &C::Name,
    unclaimed: Vec<C::Id>,
) -> Result<Attempted, Failure> {
    let abandoned = sessions.abandoned.current();
    let mut own = unclaimed;
    own.extend(sessions.unclaimed(name, connection.session()));
    if own.is_empty() && abandoned.is_empty() {
        return Ok(Ok(None));
    }
    let holders = connection.holders(name)?;
    let mut is_ours = holders.is_empty();
    for holder in holders {
        let holds = |session: &C::Id| C::is_session(*session, holder);
        is_ours |= own.iter().any(holds);
        if abandoned.iter().any(holds) {
            is_ours = true;
            match connection.end_holder(name, holder) {
                // Refused: the session has ended by itself.
                Ok(()) | Err(Failure::Refused(_)) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    if !is_ours {
        return Ok(Ok(None));
    }
    // Without a holder: the name is free by now, so the holder may have been such a request.
    // The server has replied, and granted nothing to this request.
    Ok(Err(Failure::Unanswered(Error::name_unavailable(
        "an earlier request for the lock was not answered in time, and the server may have granted the lock to that request; it is being given back, so try again",
    ))))
}
