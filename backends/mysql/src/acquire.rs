//! Acquiring a name, and waiting for it in the server.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant, Mode};
use lockkeeper_remote::{Backoff, Failure, Found, WaitPermit};

use crate::connection::Connection;
use crate::dialect::LONGEST_WAIT;
use crate::failure::unknown;
use crate::lease::MySqlLease;
use crate::names::EncodedName;
use crate::permits::Permits;
use crate::requests::{Attempted, Replies, Requests};
use crate::sessions::{Session, idle_seconds};
use crate::store::{PooledConn, Store};
use crate::wire::LONGEST_CALL;

/// The time for the last attempt, and for the reply to a wait after its end: some round trips of a busy
/// machine.
const GRACE: Duration = Duration::from_millis(500);

/// The first pause between two attempts while no connection is free to wait on; it doubles up to
/// [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The seconds after which the server ends the session of a process that was stopped while it was the first to
/// wait for a permit.
const LONGEST_SILENCE: u64 = 2;

/// The grant, or `None` if another holder has the name.
type Granted = Option<Grant<MySqlLease>>;

/// One request.
struct Acquisition<'a> {
    store: &'a Arc<Store>,
    request: &'a AcquireRequest<'a>,
    /// What is requested: a lock, or the gate of a semaphore.
    name: EncodedName,
    permits: Option<Permits>,
    idle_seconds: u64,
}

pub(crate) fn acquire(store: &Arc<Store>, request: &AcquireRequest<'_>) -> Result<Granted, Error> {
    let (namespace, name) = (&store.namespace, request.name().as_str());
    let permits = match request.mode() {
        Mode::Permit { limit } => Some(Permits {
            gate: EncodedName::semaphore(namespace, name),
            limit,
        }),
        _ => None,
    };
    let name = permits.as_ref().map(|permits| permits.gate.clone());
    let acquisition = Acquisition {
        store,
        request,
        name: name.unwrap_or_else(|| EncodedName::new(namespace, request.name().as_str())),
        permits,
        idle_seconds: idle_seconds(request.ttl()),
    };
    acquisition.run().map_err(Failure::into_error)
}

impl Acquisition<'_> {
    fn run(&self) -> Result<Granted, Failure> {
        let mut until = match self.request.deadline() {
            None => self.request.now() + self.store.remote.attempt_time(),
            Some(deadline) => deadline.max(self.request.now() + GRACE),
        };
        let mut retries = self.store.remote.pool_size;
        let mut pauses = Backoff::new(PAUSE, LONGEST_PAUSE);
        while !self.request.is_cancelled() {
            match self.attempt(until) {
                Ok(Some(grant)) => return Ok(Some(grant)),
                Ok(None) => {}
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
            if let Some((slot, _permit)) = self.checkout_to_wait(pauses.next_pause(), deadline)
                && let Some(granted) = self.wait(slot, deadline)?
            {
                return Ok(granted);
            }
            until = until.max(self.request.now() + GRACE);
        }
        Ok(None)
    }

    /// Makes one attempt: on a connection without names while few connections hold names, else on one of
    /// these.
    fn attempt(&self, until: HostInstant) -> Result<Granted, Failure> {
        let store = self.store;
        let left = || {
            let left = until.saturating_since(self.request.now());
            left.min(store.remote.response_timeout)
        };
        let shared = || store.sessions.enter(&self.name, self.idle_seconds, true);
        if store.shares()
            && let Some(session) = shared()
        {
            return self.try_on_session(&session, left());
        }
        let slot = match store.checkout_or_share(left(), shared)? {
            Found::Slot(slot) => slot,
            Found::Other(session) => return self.try_on_session(&session, left()),
        };
        match store.try_on_slot(slot, &self.requests(), self.idle_seconds, until) {
            Ok((session, replies, asked_at)) => self.granted(&session, replies, asked_at),
            // No connection can be opened.
            Err(Failure::NotSent(error)) => match shared() {
                Some(session) => self.try_on_session(&session, left()),
                None => Err(Failure::NotSent(error)),
            },
            Err(failure) => Err(failure),
        }
    }

    fn requests(&self) -> Requests {
        match &self.permits {
            Some(permits) => Requests::permit(permits.clone()),
            None => Requests::attempts(vec![self.name.clone()]),
        }
    }

    /// Requests the name on a session in which it was entered. The call continues when there is no more time:
    /// cut short, it would leave the session in doubt.
    fn try_on_session(&self, session: &Arc<Session>, left: Duration) -> Result<Granted, Failure> {
        let asked_at = self.request.now();
        let requests = self.requests();
        let call = self.store.sessions.start(session, requests, left);
        self.granted(session, call.reply(left)?, asked_at)
    }

    fn granted(
        &self,
        session: &Arc<Session>,
        mut replies: Replies,
        asked_at: HostInstant,
    ) -> Result<Granted, Failure> {
        let taken = replies.attempted.pop().unwrap_or(Ok(None))?;
        let grant = |taken| self.store.grant(session, self.request, taken, asked_at);
        Ok(taken.map(grant))
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
    fn wait(&self, slot: PooledConn, deadline: HostInstant) -> Result<Option<Granted>, Failure> {
        let store = self.store;
        let until = deadline.max(self.request.now() + GRACE);
        let requests = self.requests();
        let session = store.open_session(slot, &requests.attempts, self.idle_seconds, until)?;
        let asked_at = self.request.now();
        let span = deadline.saturating_since(asked_at);
        let span = span.min(LONGEST_WAIT).min(LONGEST_CALL);
        let wait = |connection: &mut Connection| {
            let wire = Arc::clone(&connection.wire);
            let cancel = self.request.cancel();
            let cancel = cancel.map(|cancel| cancel.on_cancel(move || wire.close()));
            let taken = match span.is_zero() {
                true => Ok(None),
                false => self.wait_on(connection, span, deadline),
            };
            // A cancel in another thread must not close the connection when other names rely on it. Either
            // it has closed the connection by now, or it never will.
            drop(cancel);
            match self.request.is_cancelled() {
                true => Err(unknown("the wait was cancelled")),
                false => Ok(Replies {
                    attempted: vec![Ok(taken?)],
                    ..Replies::default()
                }),
            }
        };
        let replies = store.sessions.call_first(&session, &requests, GRACE, wait);
        if replies.is_err() && self.request.is_cancelled() {
            return Ok(None);
        }
        let is_over = self.request.now() >= deadline;
        let granted = self.granted(&session, replies?, asked_at)?;
        Ok((granted.is_some() || is_over).then_some(granted))
    }

    fn wait_on(
        &self,
        connection: &mut Connection,
        span: Duration,
        deadline: HostInstant,
    ) -> Attempted {
        let Some(permits) = &self.permits else {
            return connection.wait(&self.name, span, GRACE);
        };
        // All others wait behind the session that holds the bell.
        connection.set_idle(LONGEST_SILENCE)?;
        let pause = || {
            let left = deadline.saturating_since(self.request.now());
            let pause = Duration::from_millis(fastrand::u64(700..1_000));
            let is_over = left.is_zero() || self.request.is_cancelled();
            (!is_over).then(|| left.min(pause))
        };
        let taken = connection.wait_for_permit(permits, span, GRACE, pause)?;
        connection.repeat(|it| it.set_idle(self.idle_seconds))?;
        Ok(taken)
    }
}
