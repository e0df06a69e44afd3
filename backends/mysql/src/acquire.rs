//! Acquiring a name, and waiting for it in the server.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant};
use lockkeeper_remote::{Backoff, Failure, WaitPermit};

use crate::abandoned::confirm_busy;
use crate::attempt::{Attempt, Outcome};
use crate::connection::Connection;
use crate::dialect::LONGEST_WAIT;
use crate::lease::MySqlLease;
use crate::names::EncodedName;
use crate::sessions::idle_seconds;
use crate::store::{PooledConn, Store};
use crate::wire::LONGEST_CALL;

/// The time for the last attempt, and for the reply to a wait after its end: some round trips of a busy
/// machine.
const GRACE: Duration = Duration::from_millis(500);

/// The first pause between two attempts while no connection is free to wait on; it doubles up to
/// [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The grant, or `None` if another holder has the name.
type Granted = Option<Grant<MySqlLease>>;

/// One request.
struct Acquisition<'a> {
    store: &'a Arc<Store>,
    request: &'a AcquireRequest<'a>,
    name: EncodedName,
    idle_seconds: u64,
}

pub(crate) fn acquire(store: &Arc<Store>, request: &AcquireRequest<'_>) -> Result<Granted, Error> {
    let acquisition = Acquisition {
        store,
        request,
        name: EncodedName::new(&store.namespace, request.name().as_str()),
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
            let outcome = self.attempt(until).run();
            match outcome.and_then(|outcome| self.granted(outcome)) {
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

    fn attempt(&self, until: HostInstant) -> Attempt {
        Attempt {
            store: Arc::clone(self.store),
            names: vec![self.name.clone()],
            idle_seconds: self.idle_seconds,
            until,
        }
    }

    fn granted(&self, mut outcome: Outcome) -> Result<Granted, Failure> {
        let attempted = outcome.attempted.pop().unwrap_or(Ok(None));
        Ok(outcome.session.zip(attempted?).map(|(session, epoch)| {
            let (request, name) = (self.request, self.name.clone());
            self.store
                .grant(&session, request, name, epoch, outcome.asked_at)
        }))
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
    ) -> Result<Option<Granted>, Failure> {
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
        let id = connection.session();
        let sessions = &store.sessions;
        let unclaimed = sessions.unclaimed(&self.name, id);
        let span = left().min(LONGEST_WAIT).min(LONGEST_CALL);
        let mut attempted = Ok(Ok(None));
        connection.limit = GRACE;
        if !span.is_zero() {
            attempted = connection.wait(&self.name, span, GRACE).map(Ok);
        }
        let is_over = self.request.now() >= deadline;
        if is_over && matches!(attempted, Ok(Ok(None))) {
            attempted = confirm_busy(sessions, &mut connection, &self.name, unclaimed);
        }
        // A cancel in another thread must not close the connection when other names rely on it. Either
        // it has closed the connection by now, or it never will.
        drop(cancel);
        if self.request.is_cancelled() {
            return Ok(None);
        }
        let attempted = vec![attempted?];
        slot.connection = Some(connection);
        let outcome = self
            .attempt(until)
            .on_new_session(slot, id, attempted, asked_at);
        let granted = self.granted(outcome)?;
        Ok((granted.is_some() || is_over).then_some(granted))
    }
}
