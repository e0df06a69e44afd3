//! Acquiring a name, and waiting for it in the server.
//!
//! If all threads lock names in the same order, no wait blocks a holder forever. Consider the holder of the
//! largest name that is held on any host. If its thread requests another name, that name is larger, so it is free.
//! The server grants it to the first waiter, or to the thread's next attempt. The attempt needs no free
//! connection, since the session of the thread's own lease takes further names of the same ttl. No call on such a
//! session waits for a lock. So the largest held name grows until a thread has all its names and releases them.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, AttemptRequest, Error, Grant, HostInstant, Operation};
use lockkeeper_remote::{Backoff, Failure, LAST_ATTEMPT, PooledConn, WaitPermit, no_time, pause};

use crate::connection::{SessionConnection, SessionName};
use crate::lease::SessionLease;
use crate::requests::{Replies, Requests};
use crate::store::{Made, SessionStore, cancellable};

/// The first pause between two attempts while no connection is free to wait on; it doubles up to
/// [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The replies that an attempt may need: to the attempt, and to the question who holds the name. A wait may need one more,
/// to the request that ends it.
const ATTEMPT: u32 = 2;

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
    /// Acquires a name behind an attempt that found another holder, or no connection: see
    /// [`Backend::acquire`](lockkeeper_core::Backend::acquire).
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
        acquisition.run()
    }
}

impl<C: SessionConnection> Acquisition<'_, C> {
    fn run(&self) -> Result<Granted<C>, Error> {
        let request = self.request;
        let mut pauses = Backoff::new(PAUSE, LONGEST_PAUSE);
        while !request.is_cancelled() {
            // A caller may have found no connection before, and a name is busy only if the server says so.
            if let Some(granted) = self.attempt()? {
                return Ok(Some(granted));
            }
            request.contended();
            let Some(deadline) = request.deadline().filter(|at| request.now() < *at) else {
                break;
            };
            let Some((slot, _permit)) = self.checkout_to_wait(pauses.next_pause(), deadline) else {
                continue;
            };
            match self.wait(slot, deadline) {
                Err(_) if request.is_cancelled() => break,
                Ok(None) if request.now() + self.ahead(ATTEMPT) < deadline => request.contended(),
                waited => {
                    if let Ok(None) = waited {
                        // The server's part ends earlier on a slow network, and the caller's wait does not.
                        let left = deadline.saturating_since(request.now());
                        pause(left, request.cancel());
                    }
                    return waited.map_err(Failure::into_error);
                }
            }
        }
        Ok(None)
    }

    /// Makes one attempt, which waits for a connection, or for a session that takes the name.
    fn attempt(&self) -> Result<Granted<C>, Error> {
        let deadline = self.request.end();
        let mut one = [Operation::Acquire(AttemptRequest {
            request: self.request,
            deadline,
            answer: None,
        })];
        let left = self.store.left(deadline);
        self.store.carry_out(&mut one, left, self.request.cancel());
        let [Operation::Acquire(AttemptRequest { answer, .. })] = one else {
            return Ok(None);
        };
        answer.unwrap_or_else(|| Err(no_time().into_error()))
    }

    /// Returns a connection to wait on. Returns `None` after `pause` if there is none. Then the caller makes
    /// another attempt, since it gets no notification.
    fn checkout_to_wait(
        &self,
        pause: Duration,
        deadline: HostInstant,
    ) -> Option<(PooledConn<C>, WaitPermit<C>)> {
        let limit = pause.min(deadline.saturating_since(self.request.now()));
        let cancel = self.request.cancel();
        self.store.pool.checkout_to_wait(limit, cancel)
    }

    /// Returns how long before the deadline the server has to begin so many replies, one after the other, to be in time. Of
    /// the time after the deadline, half is left to a busy machine.
    fn ahead(&self, replies: u32) -> Duration {
        let replies = self.store.link.round_trip() * replies;
        replies.saturating_sub(LAST_ATTEMPT / 2)
    }

    /// Waits on a connection of its own that holds no name. A cancel ends the session, which frees all its names.
    fn wait(&self, slot: PooledConn<C>, deadline: HostInstant) -> Result<Granted<C>, Failure> {
        let (store, cancel) = (self.store, self.request.cancel());
        let requests = Requests::attempts(vec![self.wanted.clone()]);
        let session = store.open_session(slot, &requests, self.idle, self.request.end(), cancel)?;
        let asked_at = self.request.now();
        let span = deadline.saturating_since(asked_at);
        let ahead = self.ahead(1 + ATTEMPT).min(span);
        let span = span - ahead;
        let wait = |connection: &mut C| {
            let taken = match span.is_zero() {
                true => Ok(None),
                false => connection.wait(&self.wanted, span, ahead + LAST_ATTEMPT),
            };
            Ok(Replies::attempt(Ok(taken?)))
        };
        let wait = |connection: &mut C| cancellable(connection, cancel, wait);
        let left = || store.left(self.request.end());
        let replies = store.sessions.call_first(&session, &requests, left, wait)?;
        let mut made = Made {
            session,
            attempted: replies.attempted,
            asked_at,
        };
        let epoch = made.attempted.pop().unwrap_or(Ok(None))?;
        let grant = |epoch| store.grant(&made, self.request, self.wanted.clone(), epoch);
        Ok(epoch.map(grant))
    }
}
