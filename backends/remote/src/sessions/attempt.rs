//! Requests on a connection without names, which becomes a session with the reply.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Grant, HostInstant};

use crate::failure::Failure;
use crate::pool::PooledConn;

use super::connection::SessionConnection;
use super::lease::SessionLease;
use super::requests::{Attempted, Requests};
use super::session::Session;
use super::state::Entry;
use super::store::SessionStore;

/// Attempts that were made on a session.
pub(crate) struct Made<C: SessionConnection> {
    pub(crate) session: Arc<Session<C>>,
    pub(crate) attempted: Vec<Attempted>,
    /// A time before the names were requested.
    pub(crate) asked_at: HostInstant,
}

impl<C: SessionConnection> SessionStore<C> {
    /// Makes a session of a slot's connection, on which the names are about to be requested. Connects if the slot
    /// has no connection.
    pub(crate) fn open_session(
        &self,
        mut slot: PooledConn<C>,
        requests: &Requests<C::Name>,
        idle: Duration,
        until: HostInstant,
    ) -> Result<Arc<Session<C>>, Failure> {
        let id = self.run(&mut slot, until, |connection| {
            match connection.check_start() {
                // The connection is still good.
                Err(refused @ Failure::Refused(_)) => return Ok(Err(refused)),
                checked => checked?,
            }
            connection.set_idle(idle)?;
            Ok(Ok(connection.session()))
        })??;
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
    ) -> Result<Made<C>, Failure> {
        let session = self.open_session(slot, requests, idle, until)?;
        let asked_at = self.clock.now();
        let left = until.saturating_since(asked_at);
        let limit = left.min(self.options.response_timeout);
        let ask = |connection: &mut _| session.ask(connection, requests);
        let replies = self.sessions.call_first(&session, requests, limit, ask)?;
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
