//! Acquiring a name, and waiting for it in the server.
//!
//! If all threads lock names in the same order, no wait blocks a holder forever. Consider the holder of the
//! largest name that is held on any host. If its thread requests another name, that name is larger, so it is free.
//! The server grants it to the first waiter, or to the thread's next attempt. The attempt needs no free
//! connection, since the session of the thread's own lease takes further names of the same ttl. No call on such a
//! session waits for a lock. So the largest held name grows until a thread has all its names and releases them.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant};
use lockkeeper_remote::{Backoff, Failure, Found, LAST_ATTEMPT, PooledConn, WaitPermit};

use crate::attempt::{Made, cancellable};
use crate::connection::{SessionConnection, SessionName};
use crate::lease::SessionLease;
use crate::requests::{Replies, Requests};
use crate::session::Session;
use crate::store::SessionStore;

/// The first pause between two attempts while no connection is free to wait on; it doubles up to
/// [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The grant, or `None` if another holder has the name.
type Granted<C> = Option<Grant<SessionLease<C>>>;

/// One request.
struct Acquisition<'a, C: SessionConnection> {
    store: &'a SessionStore<C>,
    request: &'a AcquireRequest<'a>,
    wanted: C::Name,
    idle: Duration,
}

impl<C: SessionConnection> SessionStore<C> {
    /// Acquires a name: see [`Backend::acquire`](lockkeeper_core::Backend::acquire).
    ///
    /// # Errors
    /// As there.
    pub fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Granted<C>, Error> {
        let (name, mode) = (request.name().as_str(), request.mode());
        let acquisition = Acquisition {
            store: self,
            request,
            wanted: SessionName::requested(&self.namespace, name, mode),
            idle: C::idle(request.ttl()),
        };
        acquisition.run().map_err(Failure::into_error)
    }
}

impl<C: SessionConnection> Acquisition<'_, C> {
    fn run(&self) -> Result<Granted<C>, Failure> {
        let mut retries = self.store.options.pool_size;
        let mut pauses = Backoff::new(PAUSE, LONGEST_PAUSE);
        while !self.request.is_cancelled() {
            match self.attempt() {
                Ok(Some(grant)) => return Ok(Some(grant)),
                Ok(None) => {}
                // The server may have closed every idle connection of the pool. A connection without a
                // reply is closed, and its grant ends with it. The attempt after the last of them uses
                // a new connection, and shows whether the server can be reached.
                Err(Failure::Closed(_) | Failure::Unanswered(_))
                    if retries > 0 && self.request.now() < self.request.end() =>
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
        }
        Ok(None)
    }

    /// Makes one attempt. While few connections hold names, it uses a connection without names, else one
    /// with names.
    fn attempt(&self) -> Result<Granted<C>, Failure> {
        let store = self.store;
        let left = || store.left(self.request.end());
        let shared = || store.sessions.enter(&self.wanted, self.idle, true);
        if store.shares()
            && let Some(session) = shared()
        {
            return self.try_on_session(&session, left());
        }
        let slot = match store.checkout_or_share(left(), shared)? {
            Found::Slot(slot) => slot,
            Found::Other(session) => return self.try_on_session(&session, left()),
        };
        match store.try_on_slot(
            slot,
            &self.requests(),
            self.idle,
            self.request.end(),
            self.request.cancel(),
        ) {
            Ok(made) => self.granted(made),
            // No connection can be opened.
            Err(Failure::NotSent(error)) => match shared() {
                Some(session) => self.try_on_session(&session, left()),
                None => Err(Failure::NotSent(error)),
            },
            Err(failure) => Err(failure),
        }
    }

    fn requests(&self) -> Requests<C::Name> {
        Requests::attempts(vec![self.wanted.clone()])
    }

    /// Requests the name on a session to which it was added. After the caller's time, the call continues: if
    /// it were cut short, the state of the session would be unknown.
    fn try_on_session(
        &self,
        session: &Arc<Session<C>>,
        left: Duration,
    ) -> Result<Granted<C>, Failure> {
        let asked_at = self.request.now();
        let requests = self.requests();
        let call = self.store.sessions.start(session, requests, left);
        let replies = call.reply(left, self.request.cancel())?;
        self.granted(Made {
            session: Arc::clone(session),
            attempted: replies.attempted,
            asked_at,
        })
    }

    fn granted(&self, mut made: Made<C>) -> Result<Granted<C>, Failure> {
        let epoch = made.attempted.pop().unwrap_or(Ok(None))?;
        Ok(epoch.map(|epoch| {
            self.store
                .grant(&made, self.request, self.wanted.clone(), epoch)
        }))
    }

    /// Returns a connection to wait on. Returns `None` after `pause` if there is none. Then the caller makes
    /// another attempt, since it gets no notification.
    fn checkout_to_wait(
        &self,
        pause: Duration,
        deadline: HostInstant,
    ) -> Option<(PooledConn<C>, WaitPermit<C>)> {
        let (pool, request) = (self.store.pool.clone(), self.request);
        let wake = move || pool.recheck_waits();
        let _cancel = request.cancel().map(|cancel| cancel.on_cancel(wake));
        let limit = pause.min(deadline.saturating_since(request.now()));
        let is_over = || request.is_cancelled();
        self.store.pool.checkout_to_wait(limit, is_over)
    }

    /// Waits on a connection that holds no name. A cancel ends the session, which would free all its
    /// names. Returns `None` if the wait ended before its deadline.
    fn wait(
        &self,
        slot: PooledConn<C>,
        deadline: HostInstant,
    ) -> Result<Option<Granted<C>>, Failure> {
        let store = self.store;
        let (requests, cancel) = (self.requests(), self.request.cancel());
        let session = store.open_session(slot, &requests, self.idle, self.request.end(), cancel)?;
        let asked_at = self.request.now();
        let span = deadline.saturating_since(asked_at);
        let span = span.min(C::LONGEST_WAIT);
        let wait = |connection: &mut C| {
            let taken = match span.is_zero() {
                true => Ok(None),
                false => connection.wait(&self.wanted, span, LAST_ATTEMPT),
            };
            Ok(Replies::attempt(Ok(taken?)))
        };
        let wait = |connection: &mut C| cancellable(connection, cancel, wait);
        let sessions = &store.sessions;
        let replies =
            sessions.call_first(&session, &requests, || store.left(self.request.end()), wait);
        if replies.is_err() && self.request.is_cancelled() {
            return Ok(None);
        }
        let is_over = self.request.now() >= deadline;
        let granted = self.granted(Made {
            session,
            attempted: replies?.attempted,
            asked_at,
        })?;
        Ok((granted.is_some() || is_over).then_some(granted))
    }
}
