//! Asking for a name, and waiting for it in the server.

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

/// What the last look may take, and how late the answer to a wait may come: some round trips of a
/// machine that is busy.
const GRACE: Duration = Duration::from_millis(500);

type Won = Grant<MySqlLease>;

/// What a look found.
enum Look {
    Won(Won),
    /// With the place that was asked from, where nothing is held on it.
    Busy(Option<PooledConn>),
}

/// One request.
struct Ask<'a> {
    store: &'a Arc<Store>,
    request: &'a AcquireRequest<'a>,
    name: EncodedName,
    idle_seconds: u64,
}

pub(crate) fn acquire(
    store: &Arc<Store>,
    request: &AcquireRequest<'_>,
) -> Result<Option<Won>, Error> {
    let ask = Ask {
        store,
        request,
        name: EncodedName::new(&store.namespace, request.name().as_str()),
        idle_seconds: idle_seconds(request.ttl()),
    };
    ask.run().map_err(Failure::into_error)
}

impl Ask<'_> {
    fn run(&self) -> Result<Option<Won>, Failure> {
        let until = match self.request.deadline() {
            None => self.request.now() + self.store.attempt(),
            Some(deadline) => deadline.max(self.request.now() + GRACE),
        };
        let mut was_busy = false;
        let mut closed = 0;
        loop {
            match self.look_and_wait(until, &mut was_busy) {
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

    /// `None`: the wait was disturbed, and there is time for another.
    fn look_and_wait(
        &self,
        until: HostInstant,
        was_busy: &mut bool,
    ) -> Result<Option<Option<Won>>, Failure> {
        if self.request.is_cancelled() {
            return Ok(Some(None));
        }
        let place = match self.look(until)? {
            Look::Won(won) => return Ok(Some(Some(won))),
            Look::Busy(place) => place,
        };
        self.request.contended();
        *was_busy = true;
        match self.request.deadline() {
            Some(deadline) if self.request.now() < deadline => self.wait(place, deadline),
            _ => Ok(Some(None)),
        }
    }

    /// One attempt: on a connection that holds nothing, as long as there are few that hold
    /// something, else on one of these.
    fn look(&self, until: HostInstant) -> Result<Look, Failure> {
        let store = self.store;
        let shares = store.shares();
        if shares && let Some(session) = store.enter(&self.name, self.idle_seconds) {
            return self.look_shared(&session, until);
        }
        let alone = match store.try_checkout() {
            Some(place) => self.look_alone(place, until),
            None => Err(Failure::NotSent(store.exhausted())),
        };
        // Where no connection is to be had, those that there are will do.
        if matches!(alone, Err(Failure::NotSent(_)))
            && !shares
            && let Some(session) = store.enter(&self.name, self.idle_seconds)
        {
            return self.look_shared(&session, until);
        }
        match alone {
            Err(Failure::NotSent(error)) if error.kind() == ErrorKind::PoolExhausted => {
                let place = store.checkout(until.saturating_since(self.request.now()))?;
                self.look_alone(place, until)
            }
            alone => alone,
        }
    }

    fn look_alone(&self, mut place: PooledConn, until: HostInstant) -> Result<Look, Failure> {
        let store = self.store;
        let mut asked_at = self.request.now();
        let left = until.saturating_since(asked_at);
        let (sight, id) = store.with_connection(&mut place, left, |connection, limit| {
            connection.set_idle(store.flavour, self.idle_seconds, limit)?;
            asked_at = self.request.now();
            let limit = limit.min(until.saturating_since(asked_at));
            let sight = try_lock(store, connection, &self.name, limit)?;
            Ok((sight, connection.session()))
        })?;
        match sight {
            LockReply::Granted(epoch) => Ok(Look::Won(self.won(place, id, epoch, asked_at))),
            LockReply::Busy => Ok(Look::Busy(Some(place))),
            LockReply::Abandoned => Err(Failure::Unanswered(abandoned())),
            LockReply::Disturbed => {
                place.connection = None;
                Err(Failure::Refused(disturbed()))
            }
        }
    }

    /// On a session that holds others' names. The call goes on when this request has no more time:
    /// cut short, it would leave the session in doubt.
    fn look_shared(&self, session: &Arc<Session>, until: HostInstant) -> Result<Look, Failure> {
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
            move |sight| {
                if may_be_held(&sight) {
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
        let Some(sight) = call.wait(detached::after(patience)) else {
            return Err(Failure::Unanswered(Error::new(
                ErrorKind::Unknown,
                "the server was asked and did not answer in time; what it grants is given back",
            )));
        };
        if let Ok(LockReply::Granted(epoch)) = sight {
            let now = self.request.now();
            let until = now + self.request.ttl();
            session.record_grant(&self.name, epoch, now, until);
            store.sweeper.note(until);
            let lease = MySqlLease::new(session, &self.name, epoch);
            return Ok(Look::Won(Won {
                lease,
                epoch,
                asked_at,
            }));
        }
        if may_be_held(&sight) {
            store.leave_to_sweeper(session, &self.name);
        } else {
            store.leave(session, &self.name);
        }
        match sight? {
            LockReply::Disturbed => Err(Failure::Refused(disturbed())),
            LockReply::Abandoned => Err(Failure::Unanswered(abandoned())),
            LockReply::Granted(_) | LockReply::Busy => Ok(Look::Busy(None)),
        }
    }

    /// The connection holds the name, and from now on whatever else is taken on it.
    fn won(&self, place: PooledConn, id: SessionId, epoch: u64, asked_at: HostInstant) -> Won {
        let now = self.request.now();
        let until = now + self.request.ttl();
        let name = self.name.clone();
        let session = Session::new(place, id, self.idle_seconds, name, epoch, now, until);
        let session = Arc::new(session);
        self.store.keep(&session, until);
        let lease = MySqlLease::new(&session, &self.name, epoch);
        Won {
            lease,
            epoch,
            asked_at,
        }
    }

    /// Waits on a connection of its own, on which nothing is held: the server frees what a session
    /// holds with the session, and a wait is cancelled by ending that.
    fn wait(
        &self,
        place: Option<PooledConn>,
        deadline: HostInstant,
    ) -> Result<Option<Option<Won>>, Failure> {
        let store = self.store;
        let left = || deadline.saturating_since(self.request.now());
        let mut place = match place {
            Some(place) => place,
            None => store.checkout(left())?,
        };
        store.with_connection(&mut place, left().max(GRACE), |connection, limit| {
            connection.set_idle(store.flavour, self.idle_seconds, limit)
        })?;
        let Some(mut connection) = place.connection.take() else {
            return Ok(None);
        };
        let wire = Arc::clone(&connection.wire);
        let cancel = self
            .request
            .cancel()
            .map(|cancel| cancel.on_cancel(move || wire.close()));
        let asked_at = self.request.now();
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
                store.confirm_busy(&mut connection, &self.name, GRACE)
            }
            answer => answer,
        };
        // Whoever cancels may be about to close the connection, and would close it when others rely
        // on it: either it is closed here, or nobody closes it from now on.
        drop(cancel);
        if self.request.is_cancelled() {
            return Ok(Some(None));
        }
        match answer? {
            LockReply::Granted(epoch) => {
                let id = connection.session();
                place.connection = Some(connection);
                Ok(Some(Some(self.won(place, id, epoch, asked_at))))
            }
            LockReply::Busy => {
                place.connection = Some(connection);
                let is_over = self.request.now() >= deadline;
                Ok(is_over.then_some(None))
            }
            LockReply::Abandoned => {
                place.connection = Some(connection);
                Err(Failure::Unanswered(abandoned()))
            }
            LockReply::Disturbed => Err(Failure::Refused(disturbed())),
        }
    }
}

/// Makes one attempt. Busy is what another process or guard holds.
fn try_lock(
    store: &Store,
    connection: &mut Connection,
    name: &EncodedName,
    limit: Duration,
) -> Result<LockReply, Failure> {
    match connection.try_lock(name, limit)? {
        LockReply::Busy => store.confirm_busy(connection, name, limit),
        sight => Ok(sight),
    }
}

/// Whether the server may have granted what was asked for on a session that lives on.
fn may_be_held(sight: &Result<LockReply, Failure>) -> bool {
    match sight {
        Ok(LockReply::Granted(_) | LockReply::Disturbed) | Err(Failure::Refused(_)) => true,
        // What did not answer is in doubt, and closed in the end.
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
