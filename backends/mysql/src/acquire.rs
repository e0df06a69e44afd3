//! Acquiring a name, and waiting for it in the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant};
use lockkeeper_remote::Failure;

use crate::connection::{Connection, LockReply};
use crate::detached;
use crate::lease::MySqlLease;
use crate::names::EncodedName;
use crate::session::Session;
use crate::statements::{LONGEST_WAIT, SessionId, idle_seconds};
use crate::store::{PooledConn, Store};
use crate::wire::LONGEST_CALL;

/// The time for the last attempt, and for the reply to a wait after its end: some round trips of a busy
/// machine.
const GRACE: Duration = Duration::from_millis(500);

type Won = Grant<MySqlLease>;

/// The result of an attempt.
enum Attempt {
    Granted(Won),
    /// With the connection of the attempt, if it holds no name.
    Busy(Option<PooledConn>),
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
) -> Result<Option<Won>, Error> {
    let acquisition = Acquisition {
        store,
        request,
        name: EncodedName::new(&store.namespace, request.name().as_str()),
        idle_seconds: idle_seconds(request.ttl()),
    };
    acquisition.run().map_err(Failure::into_error)
}

impl Acquisition<'_> {
    fn run(&self) -> Result<Option<Won>, Failure> {
        let until = match self.request.deadline() {
            None => self.request.now() + self.store.attempt(),
            Some(deadline) => deadline.max(self.request.now() + GRACE),
        };
        let mut was_busy = false;
        let mut closed = 0;
        loop {
            match self.attempt_and_wait(until, &mut was_busy) {
                Ok(Some(won)) => return Ok(won),
                Ok(None) => {}
                // The server may have closed every idle connection of the pool; one that does not reply
                // is closed, and what it was granted ends with it. The attempt after the last of them
                // is on a new connection, and tells whether the server can be reached.
                Err(Failure::Closed(_) | Failure::Unanswered(_))
                    if closed < self.store.options.remote.pool_size
                        && !was_busy
                        && self.request.now() < until =>
                {
                    closed += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Makes one attempt, and waits if the name is busy. `None`: the wait was disturbed, and there is time
    /// for another.
    fn attempt_and_wait(
        &self,
        until: HostInstant,
        was_busy: &mut bool,
    ) -> Result<Option<Option<Won>>, Failure> {
        if self.request.is_cancelled() {
            return Ok(Some(None));
        }
        let slot = match self.attempt(until)? {
            Attempt::Granted(won) => return Ok(Some(Some(won))),
            Attempt::Busy(slot) => slot,
        };
        self.request.contended();
        *was_busy = true;
        match self.request.deadline() {
            Some(deadline) if self.request.now() < deadline => self.wait(slot, deadline),
            _ => Ok(Some(None)),
        }
    }

    /// Makes one attempt: on a connection without names while few connections hold names, else on one of
    /// these.
    fn attempt(&self, until: HostInstant) -> Result<Attempt, Failure> {
        let store = self.store;
        let shares = store.shares();
        if shares && let Some(session) = store.enter(&self.name, self.idle_seconds) {
            return self.attempt_shared(&session, until);
        }
        let alone = match store.try_checkout() {
            Some(slot) => self.attempt_alone(slot, until),
            None => Err(Failure::NotSent(store.exhausted())),
        };
        // Without a free connection, one that holds names serves as well.
        if matches!(alone, Err(Failure::NotSent(_)))
            && !shares
            && let Some(session) = store.enter(&self.name, self.idle_seconds)
        {
            return self.attempt_shared(&session, until);
        }
        match alone {
            Err(Failure::NotSent(error)) if error.kind() == ErrorKind::PoolExhausted => {
                let slot = store.checkout(until.saturating_since(self.request.now()))?;
                self.attempt_alone(slot, until)
            }
            alone => alone,
        }
    }

    fn attempt_alone(&self, mut slot: PooledConn, until: HostInstant) -> Result<Attempt, Failure> {
        let store = self.store;
        let mut asked_at = self.request.now();
        let left = until.saturating_since(asked_at);
        let (reply, id) = store.with_connection(&mut slot, left, |connection, limit| {
            connection.set_idle(store.flavour, self.idle_seconds, limit)?;
            asked_at = self.request.now();
            let limit = limit.min(until.saturating_since(asked_at));
            let reply = try_lock(store, connection, &self.name, limit)?;
            Ok((reply, connection.session()))
        })?;
        match reply {
            LockReply::Granted(epoch) => Ok(Attempt::Granted(self.won(slot, id, epoch, asked_at))),
            LockReply::Busy => Ok(Attempt::Busy(Some(slot))),
            LockReply::Abandoned => Err(Failure::Unanswered(abandoned())),
            LockReply::Disturbed => {
                slot.connection = None;
                Err(Failure::Refused(disturbed()))
            }
        }
    }

    /// Makes one attempt on a session that holds other names. The call continues when this request has no
    /// more time: cut short, it would leave the session in doubt.
    fn attempt_shared(
        &self,
        session: &Arc<Session>,
        until: HostInstant,
    ) -> Result<Attempt, Failure> {
        let store = self.store;
        let asked_at = self.request.now();
        let left = until.saturating_since(asked_at);
        let patience = left.min(store.options.remote.response_timeout);
        let limit = Duration::from_secs(self.idle_seconds);
        let work = {
            let (store, session) = (Arc::clone(store), Arc::clone(session));
            let name = self.name.clone();
            move || {
                store.ask(&session, patience, |connection, _| {
                    try_lock(&store, connection, &name, limit)
                })
            }
        };
        let late = {
            let (store, session) = (Arc::clone(store), Arc::clone(session));
            let name = self.name.clone();
            move |reply| {
                if may_be_held(&reply) {
                    store.end(&session, &[name]);
                } else {
                    store.leave(&session, &name);
                }
            }
        };
        let Some(call) = detached::start(work, late) else {
            store.leave(session, &self.name);
            return Err(Failure::NotSent(no_thread()));
        };
        let Some(reply) = call.wait(detached::after(patience)) else {
            return Err(Failure::Unanswered(Error::new(
                ErrorKind::Unknown,
                "the server was asked and did not answer in time; what it grants is given back",
            )));
        };
        if let Ok(LockReply::Granted(epoch)) = reply {
            let now = self.request.now();
            let until = now + self.request.ttl();
            session.record_grant(&self.name, epoch, now, until);
            store.sweeper.note(until);
            let lease = MySqlLease::new(session, &self.name, epoch);
            return Ok(Attempt::Granted(Won {
                lease,
                epoch,
                asked_at,
            }));
        }
        if may_be_held(&reply) {
            store.leave_to_sweeper(session, &self.name);
        } else {
            store.leave(session, &self.name);
        }
        match reply? {
            LockReply::Disturbed => Err(Failure::Refused(disturbed())),
            LockReply::Abandoned => Err(Failure::Unanswered(abandoned())),
            LockReply::Granted(_) | LockReply::Busy => Ok(Attempt::Busy(None)),
        }
    }

    /// Makes a session of a connection that was granted the name.
    fn won(&self, slot: PooledConn, id: SessionId, epoch: u64, asked_at: HostInstant) -> Won {
        let now = self.request.now();
        let until = now + self.request.ttl();
        let name = self.name.clone();
        let session = Session::new(slot, id, self.idle_seconds, name, epoch, now, until);
        let session = Arc::new(session);
        self.store.keep(&session, until);
        let lease = MySqlLease::new(&session, &self.name, epoch);
        Won {
            lease,
            epoch,
            asked_at,
        }
    }

    /// Waits on a connection of its own that holds no name: a wait is cancelled by ending its session, and
    /// that frees all names of the session.
    fn wait(
        &self,
        slot: Option<PooledConn>,
        deadline: HostInstant,
    ) -> Result<Option<Option<Won>>, Failure> {
        let store = self.store;
        let left = || deadline.saturating_since(self.request.now());
        let mut slot = match slot {
            Some(slot) => slot,
            None => store.checkout(left())?,
        };
        store.with_connection(&mut slot, left().max(GRACE), |connection, limit| {
            connection.set_idle(store.flavour, self.idle_seconds, limit)
        })?;
        let Some(mut connection) = slot.connection.take() else {
            return Ok(None);
        };
        let wire = Arc::clone(&connection.wire);
        let cancel = self
            .request
            .cancel()
            .map(|cancel| cancel.on_cancel(move || wire.close()));
        let asked_at = self.request.now();
        let unclaimed = store.unclaimed(&self.name, connection.session());
        let span = left().min(LONGEST_WAIT).min(LONGEST_CALL);
        let answer = if span.is_zero() {
            Ok(LockReply::Busy)
        } else {
            store.waiting.fetch_add(1, Ordering::Relaxed);
            let answer = connection.wait(store.flavour, &self.name, span, GRACE);
            store.waiting.fetch_sub(1, Ordering::Relaxed);
            answer
        };
        let answer = match answer {
            Ok(LockReply::Busy) if self.request.now() >= deadline => {
                store.confirm_busy(&mut connection, &self.name, unclaimed, GRACE)
            }
            answer => answer,
        };
        // A cancel in another thread must not close the connection when other names rely on it. Either
        // it has closed the connection by now, or it never will.
        drop(cancel);
        if self.request.is_cancelled() {
            return Ok(Some(None));
        }
        match answer? {
            LockReply::Granted(epoch) => {
                let id = connection.session();
                slot.connection = Some(connection);
                Ok(Some(Some(self.won(slot, id, epoch, asked_at))))
            }
            LockReply::Busy => {
                slot.connection = Some(connection);
                let is_over = self.request.now() >= deadline;
                Ok(is_over.then_some(None))
            }
            LockReply::Abandoned => {
                slot.connection = Some(connection);
                Err(Failure::Unanswered(abandoned()))
            }
            LockReply::Disturbed => Err(Failure::Refused(disturbed())),
        }
    }
}

/// Tries to take a name on a connection. Busy means that another process or guard holds it.
fn try_lock(
    store: &Store,
    connection: &mut Connection,
    name: &EncodedName,
    limit: Duration,
) -> Result<LockReply, Failure> {
    let unclaimed = store.unclaimed(name, connection.session());
    match connection.try_lock(name, limit)? {
        LockReply::Busy => store.confirm_busy(connection, name, unclaimed, limit),
        reply => Ok(reply),
    }
}

/// Returns whether the server may have granted the name on a session that lives on.
fn may_be_held(reply: &Result<LockReply, Failure>) -> bool {
    match reply {
        Ok(LockReply::Granted(_) | LockReply::Disturbed) | Err(Failure::Refused(_)) => true,
        // A session with a missing reply is in doubt, and closed in the end.
        Ok(LockReply::Busy | LockReply::Abandoned)
        | Err(Failure::NotSent(_) | Failure::Closed(_) | Failure::Unanswered(_)) => false,
    }
}

fn abandoned() -> Error {
    Error::new(
        ErrorKind::Unknown,
        "an earlier request for the lock was not answered in time, and the server may have granted the lock to that request; it is being given back, so try again",
    )
}

fn disturbed() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the server was disturbed while it was asked for the lock, by a KILL or by an error of its own",
    )
}

pub(crate) fn no_thread() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the thread that asks the server cannot be started; is the limit of threads reached?",
    )
}
