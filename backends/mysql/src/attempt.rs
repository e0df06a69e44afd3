//! Requests on a connection without names, which becomes a session with the reply.

use std::sync::Arc;

use lockkeeper_core::{AcquireRequest, Grant, HostInstant};
use lockkeeper_remote::Failure;

use crate::lease::MySqlLease;
use crate::names::EncodedName;
use crate::requests::{Replies, Requests, Taken};
use crate::sessions::{Entry, Session};
use crate::store::{PooledConn, Store};

impl Store {
    /// Makes a session of a slot's connection, on which `names` are about to be requested. Connects if the slot
    /// has no connection.
    pub(crate) fn open_session(
        &self,
        mut slot: PooledConn,
        names: &[EncodedName],
        idle_seconds: u64,
        until: HostInstant,
    ) -> Result<Arc<Session>, Failure> {
        let id = self.run(&mut slot, until, |connection| {
            if let Err(refused) = connection.check_start() {
                return Ok(Err(refused));
            }
            connection.set_idle(idle_seconds)?;
            Ok(Ok(connection.session()))
        })??;
        let names = names.iter().cloned();
        let session = Session::new(slot, id, idle_seconds, names, &self.sessions.verifiers);
        Ok(Arc::new(session))
    }

    /// Makes attempts of one ttl on a connection without names. Returns the session with the replies, and a time
    /// before the names were requested.
    pub(crate) fn try_on_slot(
        &self,
        slot: PooledConn,
        requests: &Requests,
        idle_seconds: u64,
        until: HostInstant,
    ) -> Result<(Arc<Session>, Replies, HostInstant), Failure> {
        let session = self.open_session(slot, &requests.attempts, idle_seconds, until)?;
        let asked_at = self.clock.now();
        let left = until.saturating_since(asked_at);
        let limit = left.min(self.remote.response_timeout);
        let ask = |connection: &mut _| session.ask(connection, requests);
        let replies = self.sessions.call_first(&session, requests, limit, ask)?;
        Ok((session, replies, asked_at))
    }

    /// Records what the session was granted.
    pub(crate) fn grant(
        &self,
        session: &Arc<Session>,
        request: &AcquireRequest<'_>,
        taken: Taken,
        asked_at: HostInstant,
    ) -> Grant<MySqlLease> {
        let Taken { name, epoch, slot } = taken;
        let since = self.clock.now();
        let until = since + request.ttl();
        let granted = Some((epoch, since));
        self.sessions.set(session, &name, Entry { granted, until });
        // The session takes more names from now on.
        self.pool.recheck();
        let session = Arc::clone(session);
        let lease = MySqlLease {
            session,
            name,
            epoch,
        };
        Grant {
            lease,
            epoch,
            asked_at,
            slot,
        }
    }
}
