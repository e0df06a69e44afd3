//! Acquiring a name, and waiting for it in the server.

use std::sync::Arc;
use std::sync::mpsc::SendError;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant};
use lockkeeper_remote::{Backoff, Failure, Found, WaitPermit};

use crate::abandoned::{Attempted, confirm_busy, try_lock};
use crate::connection::Connection;
use crate::dialect::LONGEST_WAIT;
use crate::failure::unknown;
use crate::lease::MySqlLease;
use crate::names::EncodedName;
use crate::sessions::{Entry, Session, idle_seconds};
use crate::statements::SessionId;
use crate::store::{PooledConn, Store};
use crate::wire::LONGEST_CALL;

/// The time for the last attempt, and for the reply to a wait after its end: some round trips of a busy
/// machine.
const GRACE: Duration = Duration::from_millis(500);

/// The first pause between two attempts while no connection is free to wait on; it doubles up to
/// [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The result of an attempt or a wait.
enum Outcome {
    Granted(Grant<MySqlLease>),
    /// Another holder has the name.
    Busy,
}

/// One request.
struct Acquisition<'a> {
    store: &'a Arc<Store>,
    request: &'a AcquireRequest<'a>,
    name: EncodedName,
    idle_seconds: u64,
}

pub(crate) fn acquire(
    store: &Arc<Store>,
    request: &AcquireRequest<'_>,
) -> Result<Option<Grant<MySqlLease>>, Error> {
    let acquisition = Acquisition {
        store,
        request,
        name: EncodedName::new(&store.namespace, request.name().as_str()),
        idle_seconds: idle_seconds(request.ttl()),
    };
    acquisition.run().map_err(Failure::into_error)
}

impl Acquisition<'_> {
    fn run(&self) -> Result<Option<Grant<MySqlLease>>, Failure> {
        let mut until = match self.request.deadline() {
            None => self.request.now() + self.store.remote.attempt_time(),
            Some(deadline) => deadline.max(self.request.now() + GRACE),
        };
        let mut retries = self.store.remote.pool_size;
        let mut pauses = Backoff::new(PAUSE, LONGEST_PAUSE);
        while !self.request.is_cancelled() {
            match self.attempt(until) {
                Ok(Outcome::Granted(grant)) => return Ok(Some(grant)),
                Ok(Outcome::Busy) => {}
                // The server may have closed every idle connection of the pool; one that does not reply
                // is closed, and what it was granted ends with it. The attempt after the last of them
                // is on a new connection, and tells whether the server can be reached.
                Err(Failure::Closed(_) | Failure::Unanswered(_))
                    if retries > 0 && self.request.now() < until =>
                {
                    retries -= 1;
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            self.request.contended();
            // The engine retries after a busy attempt.
            retries = 0;
            let deadline = match self.request.deadline() {
                Some(deadline) if self.request.now() < deadline => deadline,
                _ => return Ok(None),
            };
            if let Some((slot, _permit)) = self.checkout_to_wait(pauses.next_pause(), deadline) {
                match self.wait(slot, deadline)? {
                    Some(Outcome::Granted(grant)) => return Ok(Some(grant)),
                    Some(Outcome::Busy) => return Ok(None),
                    None => {}
                }
            }
            until = until.max(self.request.now() + GRACE);
        }
        Ok(None)
    }

    /// Makes one attempt: on a connection without names while few connections hold names, else on one of
    /// these.
    fn attempt(&self, until: HostInstant) -> Result<Outcome, Failure> {
        let store = self.store;
        let shared = || store.sessions.enter(&self.name, self.idle_seconds);
        if store.shares()
            && let Some(session) = shared()
        {
            return self.attempt_shared(&session, until);
        }
        let left = until.saturating_since(self.request.now());
        let slot = match store.checkout_or_share(left, shared)? {
            Found::Slot(slot) => slot,
            Found::Other(session) => return self.attempt_shared(&session, until),
        };
        let outcome = self.attempt_alone(slot, until);
        if matches!(outcome, Err(Failure::NotSent(_)))
            && let Some(session) = shared()
        {
            return self.attempt_shared(&session, until);
        }
        outcome
    }

    fn attempt_alone(&self, mut slot: PooledConn, until: HostInstant) -> Result<Outcome, Failure> {
        let store = self.store;
        let mut asked_at = self.request.now();
        let (attempted, id) = store.run(&mut slot, until, |connection| {
            if let Err(refused) = connection.check_start() {
                return Ok((Err(refused), connection.session()));
            }
            connection.set_idle(self.idle_seconds)?;
            asked_at = self.request.now();
            connection.limit = connection.limit.min(until.saturating_since(asked_at));
            let attempted = try_lock(store, connection, &self.name)?;
            Ok((attempted, connection.session()))
        })?;
        self.outcome(attempted, slot, id, asked_at)
    }

    /// Makes one attempt on a session that holds other names. The call continues when this request has no
    /// more time: cut short, it would leave the session in doubt.
    fn attempt_shared(
        &self,
        session: &Arc<Session>,
        until: HostInstant,
    ) -> Result<Outcome, Failure> {
        let asked_at = self.request.now();
        let left = until.saturating_since(asked_at);
        let left = left.min(self.store.remote.response_timeout);
        let (store, theirs) = (Arc::clone(self.store), Arc::clone(session));
        let name = self.name.clone();
        let calls = &self.store.sessions.calls;
        let epoch = calls
            .start(move |reply| {
                let attempted = theirs.run(left, |connection| {
                    connection.limit = theirs.longest_call();
                    try_lock(&store, connection, &name)
                });
                let epoch = attempted.flatten();
                match &epoch {
                    Ok(Some(_)) => {}
                    // The server may have granted the name all the same.
                    Err(Failure::Refused(_)) => store.sessions.leave_over(&theirs, &name),
                    // A session with a missing reply is in doubt, and closed in the end.
                    Ok(None) | Err(_) => theirs.leave(&name),
                }
                if let Err(SendError(Ok(Some(_)))) = reply.send(epoch) {
                    let _ = store.sessions.release(&theirs, &name);
                }
            })
            .inspect_err(|_| session.leave(&self.name))?;
        let epoch = epoch.recv_timeout(left).unwrap_or_else(|_| {
            Err(unknown(
                "the server was asked and did not answer in time; what it grants is given back",
            ))
        })?;
        Ok(match epoch {
            Some(epoch) => self.granted(session, epoch, asked_at),
            None => Outcome::Busy,
        })
    }

    /// Returns a connection to wait on. Returns `None` after `pause` if there is none: the caller asks again
    /// then, since no notification reaches it.
    fn checkout_to_wait(
        &self,
        pause: Duration,
        deadline: HostInstant,
    ) -> Option<(PooledConn, WaitPermit<Connection>)> {
        let (store, request) = (Arc::clone(self.store), self.request);
        let wake = move || store.pool.recheck_waits();
        let _cancel = request.cancel().map(|cancel| cancel.on_cancel(wake));
        let limit = pause.min(deadline.saturating_since(request.now()));
        let is_over = || request.is_cancelled();
        self.store.pool.checkout_to_wait(limit, is_over)
    }

    /// Waits on a connection of its own that holds no name: a wait is cancelled by ending its session, and
    /// that frees all names of the session. Returns `None` if the wait ended before its deadline.
    fn wait(
        &self,
        mut slot: PooledConn,
        deadline: HostInstant,
    ) -> Result<Option<Outcome>, Failure> {
        let store = self.store;
        let left = || deadline.saturating_since(self.request.now());
        let until = deadline.max(self.request.now() + GRACE);
        store.run(&mut slot, until, |connection| {
            connection.set_idle(self.idle_seconds)
        })?;
        let Some(mut connection) = slot.connection.take_if(|it| it.check_start().is_ok()) else {
            // The next attempt tells why.
            return Ok(None);
        };
        let wire = Arc::clone(&connection.wire);
        let cancel = self.request.cancel();
        let cancel = cancel.map(|cancel| cancel.on_cancel(move || wire.close()));
        let asked_at = self.request.now();
        let unclaimed = store.sessions.unclaimed(&self.name, connection.session());
        let span = left().min(LONGEST_WAIT).min(LONGEST_CALL);
        let mut attempted = Ok(Ok(None));
        connection.limit = GRACE;
        if !span.is_zero() {
            attempted = connection.wait(&self.name, span, GRACE).map(Ok);
        }
        let is_over = self.request.now() >= deadline;
        if is_over && matches!(attempted, Ok(Ok(None))) {
            attempted = confirm_busy(store, &mut connection, &self.name, unclaimed);
        }
        // A cancel in another thread must not close the connection when other names rely on it. Either
        // it has closed the connection by now, or it never will.
        drop(cancel);
        if self.request.is_cancelled() {
            return Ok(None);
        }
        let attempted = attempted?;
        let id = connection.session();
        slot.connection = Some(connection);
        match self.outcome(attempted, slot, id, asked_at)? {
            Outcome::Busy if !is_over => Ok(None),
            outcome => Ok(Some(outcome)),
        }
    }

    /// Returns what the reply on a connection without other names means.
    fn outcome(
        &self,
        attempted: Attempted,
        slot: PooledConn,
        id: SessionId,
        asked_at: HostInstant,
    ) -> Result<Outcome, Failure> {
        let Some(epoch) = attempted? else {
            return Ok(Outcome::Busy);
        };
        let sessions = &self.store.sessions;
        let (idle, verifiers) = (self.idle_seconds, &sessions.verifiers);
        let session = Arc::new(Session::new(slot, id, idle, &self.name, verifiers));
        sessions.add(&session);
        Ok(self.granted(&session, epoch, asked_at))
    }

    fn granted(&self, session: &Arc<Session>, epoch: u64, asked_at: HostInstant) -> Outcome {
        let since = self.request.now();
        let until = since + self.request.ttl();
        let granted = Some((epoch, since));
        let entry = Entry { granted, until };
        self.store.sessions.set(session, &self.name, entry);
        // The session takes more names from now on.
        self.store.pool.recheck();
        Outcome::Granted(Grant {
            lease: MySqlLease {
                session: Arc::clone(session),
                name: self.name.clone(),
                epoch,
            },
            epoch,
            asked_at,
        })
    }
}
