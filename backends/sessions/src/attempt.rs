//! Requests on a connection without names. With the reply, it becomes a session.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, CancelToken, Grant, HostInstant};
use lockkeeper_remote::{Failure, PooledConn, until_cancelled};

use crate::connection::SessionConnection;
use crate::lease::SessionLease;
use crate::requests::{Attempted, Requests};
use crate::session::Session;
use crate::state::Entry;
use crate::store::SessionStore;

/// Attempts that were made on a session.
pub(crate) struct Made<C: SessionConnection> {
    pub(crate) session: Arc<Session<C>>,
    pub(crate) attempted: Vec<Attempted>,
    /// A time before the names were requested.
    pub(crate) asked_at: HostInstant,
}

/// Runs `work` on a connection that holds no name. A cancel closes the connection, and so ends the work.
pub(crate) fn cancellable<C: SessionConnection, T>(
    connection: &mut C,
    cancel: Option<&CancelToken>,
    work: impl FnOnce(&mut C) -> Result<T, Failure>,
) -> Result<T, Failure> {
    // After the work, a cancel in another thread must not close the connection, since other names may use it.
    let close = connection.canceller();
    let result = until_cancelled(cancel, Some(close), || work(connection));
    // The reply may have granted a name just before the cancel.
    connection.link_mut().is_in_doubt |= matches!(result, Err(Failure::Unanswered(_)));
    result
}

impl<C: SessionConnection> SessionStore<C> {
    /// Makes a session from a slot's connection, for the names that are requested next. Connects if the slot has
    /// no connection.
    pub(crate) fn open_session(
        &self,
        mut slot: PooledConn<C>,
        requests: &Requests<C::Name>,
        idle: Duration,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Arc<Session<C>>, Failure> {
        let opened = self.run(&mut slot, until, cancel, |connection| {
            match connection.check_start() {
                // The connection is still good.
                Err(refused @ Failure::Refused(_)) => return Ok(Err(refused)),
                checked => checked?,
            }
            cancellable(connection, cancel, |it| it.set_idle(idle))?;
            Ok(Ok(connection.session()))
        });
        let id = opened??;
        let names = requests.attempts.iter().cloned();
        let session = Session::new(slot, id, idle, names, &self.sessions.verifiers);
        Ok(Arc::new(session))
    }

    /// Makes attempts of one ttl on a connection without names, which becomes a session.
    pub(crate) fn try_on_slot(
        &self,
        slot: PooledConn<C>,
        requests: &Requests<C::Name>,
        idle: Duration,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Made<C>, Failure> {
        let session = self.open_session(slot, requests, idle, until, cancel)?;
        let asked_at = self.clock.now();
        let ask =
            |connection: &mut _| cancellable(connection, cancel, |it| session.ask(it, requests));
        let replies = self
            .sessions
            .call_first(&session, requests, || self.left(until), ask)?;
        Ok(Made {
            session,
            attempted: replies.attempted,
            asked_at,
        })
    }

    /// Records what the session was granted.
    pub(crate) fn grant(
        &self,
        made: &Made<C>,
        request: &AcquireRequest<'_>,
        name: C::Name,
        epoch: u64,
    ) -> Grant<SessionLease<C>> {
        let since = self.clock.now();
        let until = since + request.ttl();
        let granted = Some((epoch, since));
        self.sessions
            .set(&made.session, &name, Entry { granted, until });
        // The session takes more names from now on.
        self.pool.recheck();
        let session = Arc::clone(&made.session);
        let lease = SessionLease {
            session,
            name,
            epoch,
        };
        Grant {
            lease,
            epoch,
            asked_at: made.asked_at,
            slot: 0,
        }
    }
}
