//! One attempt to take names of one ttl: on a connection without names, which becomes a session, or on a
//! session that holds some.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Grant, HostInstant};
use lockkeeper_remote::{Failure, Found};

use crate::abandoned::confirm_busy;
use crate::failure::unknown;
use crate::lease::MySqlLease;
use crate::names::EncodedName;
use crate::requests::{Attempted, Requests};
use crate::sessions::{Entry, Session};
use crate::statements::SessionId;
use crate::store::{PooledConn, Store};

/// Different names of one ttl that are requested until a deadline.
pub(crate) struct Attempt {
    pub(crate) store: Arc<Store>,
    pub(crate) names: Vec<EncodedName>,
    pub(crate) idle_seconds: u64,
    pub(crate) until: HostInstant,
}

/// What became of the names of an attempt.
pub(crate) struct Outcome {
    /// The session that was granted names, if one was.
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) attempted: Vec<Attempted>,
    /// A time before the request was sent.
    pub(crate) asked_at: HostInstant,
}

impl Attempt {
    fn left(&self) -> Duration {
        let left = self.until.saturating_since(self.store.clock.now());
        left.min(self.store.remote.response_timeout)
    }

    /// Requests the names on a connection without names while few connections hold names, else on one of
    /// these.
    pub(crate) fn run(&self) -> Result<Outcome, Failure> {
        let store = &self.store;
        let shared = || {
            let first = self.names.first()?;
            store.sessions.enter(first, self.idle_seconds, true)
        };
        if store.shares()
            && let Some(session) = shared()
        {
            return self.run_shared(&session);
        }
        let slot = match store.checkout_or_share(self.left(), shared)? {
            Found::Slot(slot) => slot,
            Found::Other(session) => return self.run_shared(&session),
        };
        let outcome = self.run_alone(slot);
        if matches!(outcome, Err(Failure::NotSent(_)))
            && let Some(session) = shared()
        {
            return self.run_shared(&session);
        }
        outcome
    }

    fn run_alone(&self, mut slot: PooledConn) -> Result<Outcome, Failure> {
        let Self { store, until, .. } = self;
        let requests = Requests::attempts(self.names.clone());
        let mut asked_at = store.clock.now();
        let (attempted, id) = store.run(&mut slot, *until, |connection| {
            if let Err(refused) = connection.check_start() {
                return Ok(Err(refused));
            }
            connection.set_idle(self.idle_seconds)?;
            asked_at = store.clock.now();
            connection.limit = connection.limit.min(until.saturating_since(asked_at));
            let id = connection.session();
            let unclaimed = |name| store.sessions.unclaimed(name, id);
            let unclaimed: Vec<_> = self.names.iter().map(unclaimed).collect();
            let mut attempted = connection.ask(&requests)?.attempted;
            for ((name, attempted), unclaimed) in
                self.names.iter().zip(&mut attempted).zip(unclaimed)
            {
                if matches!(attempted, Ok(None)) {
                    *attempted = confirm_busy(&store.sessions, connection, name, unclaimed)?;
                }
            }
            Ok(Ok((attempted, id)))
        })??;
        Ok(self.on_new_session(slot, id, attempted, asked_at))
    }

    /// Makes a session of the connection that may have been granted names.
    pub(crate) fn on_new_session(
        &self,
        slot: PooledConn,
        id: SessionId,
        attempted: Vec<Attempted>,
        asked_at: HostInstant,
    ) -> Outcome {
        let sessions = &self.store.sessions;
        let both = || self.names.iter().zip(&attempted);
        let may_be_held =
            |attempted: &_| matches!(attempted, Ok(Some(_)) | Err(Failure::Refused(_)));
        let names = both().filter(|(_, attempted)| may_be_held(attempted));
        let names: Vec<_> = names.map(|(name, _)| name.clone()).collect();
        let session = (!names.is_empty()).then(|| {
            let session = Session::new(slot, id, self.idle_seconds, names, &sessions.verifiers);
            let session = Arc::new(session);
            sessions.add(&session);
            for (name, _) in both().filter(|it| matches!(it.1, Err(Failure::Refused(_)))) {
                sessions.leave_over(&session, name);
            }
            session
        });
        Outcome {
            session,
            attempted,
            asked_at,
        }
    }

    /// Releases what was granted too late.
    pub(crate) fn give_back(&self, outcome: &Outcome) {
        if let Some(session) = &outcome.session {
            let both = self.names.iter().zip(&outcome.attempted);
            let granted = both.filter(|(_, attempted)| matches!(attempted, Ok(Some(_))));
            let names = granted.map(|(name, _)| name.clone()).collect();
            self.store.sessions.give_back(session, names);
        }
    }

    /// Requests the names on a session in which the first one was entered. The call continues when there is
    /// no more time: cut short, it would leave the session in doubt.
    fn run_shared(&self, session: &Arc<Session>) -> Result<Outcome, Failure> {
        let asked_at = self.store.clock.now();
        let mut entered: HashSet<_> = self.names.first().into_iter().collect();
        let others = self.names.iter().skip(1);
        entered.extend(others.filter(|name| session.state().enter(name)));
        let names = self.names.iter().filter(|name| entered.contains(name));
        let requests = Requests::attempts(names.cloned().collect());
        let left = self.left();
        let reply = self.store.sessions.start(session, requests, left)?;
        let reply = reply.recv_timeout(left).unwrap_or_else(|_| Err(late()));
        let mut attempted = reply?.attempted.into_iter();
        let exhausted = || Err(self.store.exhausted());
        let attempted = self.names.iter().map(|name| match entered.contains(name) {
            true => attempted.next().unwrap_or_else(|| Err(late())),
            false => exhausted(),
        });
        Ok(Outcome {
            attempted: attempted.collect(),
            session: Some(Arc::clone(session)),
            asked_at,
        })
    }
}

/// The failure of a call on a session that has not ended in time.
pub(crate) fn late() -> Failure {
    unknown("no reply yet; the request is still in flight, and a lock that it takes is given back")
}

impl Store {
    /// Records that the session was granted a name.
    pub(crate) fn grant(
        &self,
        session: &Arc<Session>,
        request: &AcquireRequest<'_>,
        name: EncodedName,
        epoch: u64,
        asked_at: HostInstant,
    ) -> Grant<MySqlLease> {
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
            slot: 0,
        }
    }
}
