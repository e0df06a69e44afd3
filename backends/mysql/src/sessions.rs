//! The sessions that hold names, and the sweeper that ends leases that no guard renews.
//!
//! Nothing in here is SQL. Any store that binds its locks to sessions has the same states and calls.

mod detached;
mod session;
mod state;

pub(crate) use detached::Call;
pub(crate) use session::{Session, idle_seconds};
pub(crate) use state::Entry;

use std::sync::Arc;
use std::sync::mpsc::SendError;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, HostInstant, LeaseVerifiers, Tick, Timer};
use lockkeeper_remote::Failure;
use parking_lot::{Mutex, MutexGuard};

use crate::abandoned::confirm_busy;
use crate::connection::Connection;
use crate::names::EncodedName;
use crate::requests::{Replies, Requests};
use crate::statements::SessionId;

use detached::DetachedCalls;

/// The time until the next attempt to end a lease.
const SWEEP_RETRY: Duration = Duration::from_millis(100);

pub(crate) struct Sessions {
    clock: Arc<dyn Clock>,
    list: Mutex<Vec<Arc<Session>>>,
    /// Ends leases that no guard renews, while other names keep their session alive. It never waits for
    /// the server.
    sweeper: Timer,
    /// Calls on sessions that hold names of several callers.
    calls: DetachedCalls,
    /// The keepers, which verify their leases when a session has ended.
    pub(crate) verifiers: Arc<LeaseVerifiers>,
}

impl Sessions {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Result<Arc<Self>, Error> {
        let sessions = Arc::new(Self {
            sweeper: Timer::new(Arc::clone(&clock)),
            clock,
            list: Mutex::default(),
            calls: DetachedCalls::default(),
            verifiers: Arc::default(),
        });
        let weak = Arc::downgrade(&sessions);
        let sweep = move |tick: Tick| Some(weak.upgrade()?.sweep(tick.now));
        sessions.sweeper.start("lockkeeper-mysql-sweep", sweep)?;
        Ok(sessions)
    }

    /// Returns the sessions that are not over.
    fn live(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        let mut list = self.list.lock();
        list.retain(|session| !session.state().is_over());
        list
    }

    pub(crate) fn count(&self) -> usize {
        self.live().len()
    }

    fn add(&self, session: &Arc<Session>) {
        self.list.lock().push(Arc::clone(session));
        // Its connection may have ended before the session was in the list.
        if session.is_cut() {
            session.end();
        }
    }

    /// Records that the server has closed the connection of a session. Connections that hold no name are
    /// none of the sessions.
    pub(crate) fn end(&self, id: SessionId) {
        let ended: Vec<_> = self
            .live()
            .iter()
            .filter(|it| it.id == id)
            .cloned()
            .collect();
        ended.iter().for_each(|session| session.end());
    }

    /// Enters `name` in a session of the same ttl, and returns the session: the one with the fewest names
    /// of those without a call under way, or if `or_busy`, of the others.
    pub(crate) fn enter(
        &self,
        name: &EncodedName,
        idle_seconds: u64,
        or_busy: bool,
    ) -> Option<Arc<Session>> {
        let list = self.list.lock();
        let fit = list.iter().filter_map(|session| {
            let is_busy = session.is_busy();
            let fits = session.idle_seconds == idle_seconds && (or_busy || !is_busy);
            fits.then(|| (is_busy, session.state().names.len(), session))
        });
        let mut fit: Vec<_> = fit.collect();
        fit.sort_by_key(|(is_busy, names, _)| (*is_busy, *names));
        let mut fit = fit.into_iter().map(|(_, _, session)| session);
        fit.find(|session| session.state().enter(name))
            .map(Arc::clone)
    }

    /// Changes the entry of a name, which the sweeper releases when its time is over.
    pub(crate) fn set(&self, session: &Session, name: &EncodedName, entry: Entry) {
        let has_ended = session.state().set(name, entry);
        self.sweeper.note(entry.until);
        // The session's end had no lease to verify yet.
        if has_ended && entry.granted.is_some() {
            self.verifiers.verify_all();
        }
    }

    /// Has the sweeper release a name that no guard holds.
    fn leave_over(&self, session: &Session, name: &EncodedName) {
        let (granted, until) = (None, self.clock.now() + SWEEP_RETRY);
        self.set(session, name, Entry { granted, until });
    }

    /// Returns the sessions on which the server may hold the name while no guard of this process
    /// does, except one.
    pub(crate) fn unclaimed(&self, name: &EncodedName, except: SessionId) -> Vec<SessionId> {
        let now = self.clock.now();
        let live = self.live();
        let unclaimed = live
            .iter()
            .filter(|session| session.id != except && session.state().has_unclaimed(name, now));
        unclaimed.map(|session| session.id).collect()
    }

    /// Returns for each attempt the sessions that [`unclaimed`](Self::unclaimed) returns.
    fn all_unclaimed(&self, session: &Session, requests: &Requests) -> Vec<Vec<SessionId>> {
        let names = requests.attempts.iter();
        names.map(|name| self.unclaimed(name, session.id)).collect()
    }

    /// Carries out requests about names that were entered, on the caller's thread. The session is waited
    /// for within `limit`; the replies may take as long as a lease lasts, since other names depend on them.
    fn call(
        &self,
        session: &Session,
        requests: &Requests,
        limit: Duration,
    ) -> Result<Replies, Failure> {
        let unclaimed = self.all_unclaimed(session, requests);
        let longest = session.longest_call();
        let result = session.run(limit, |connection| {
            connection.limit = longest;
            session.ask(connection, requests)
        });
        self.finish(session, requests, result, unclaimed, longest)
    }

    /// Carries out requests within `limit`, if no other name depends on the session: see
    /// [`Session::run_alone`].
    pub(crate) fn call_alone(
        &self,
        session: &Session,
        requests: &Requests,
        limit: Duration,
    ) -> Option<Result<Replies, Failure>> {
        let unclaimed = self.all_unclaimed(session, requests);
        let ask = |connection: &mut _| session.ask(connection, requests);
        let result = session.run_alone(requests.count(), limit, ask)?;
        Some(self.finish(session, requests, result, unclaimed, limit))
    }

    /// Carries out the first attempts of a new session by `ask`, within `limit`, and adds the session.
    pub(crate) fn call_first(
        &self,
        session: &Arc<Session>,
        requests: &Requests,
        limit: Duration,
        ask: impl FnOnce(&mut Connection) -> Result<Replies, Failure>,
    ) -> Result<Replies, Failure> {
        let unclaimed = self.all_unclaimed(session, requests);
        let result = session.run(limit, ask);
        // Not before the reply: of two sessions that try one name, each would take the other for its holder.
        self.add(session);
        self.finish(session, requests, result, unclaimed, limit)
    }

    /// Confirms which names are busy, and enters in the session what the replies say. `unclaimed` is from before
    /// the call.
    fn finish(
        &self,
        session: &Session,
        requests: &Requests,
        mut result: Result<Replies, Failure>,
        unclaimed: Vec<Vec<SessionId>>,
        limit: Duration,
    ) -> Result<Replies, Failure> {
        let attempted = result.as_mut().map(|replies| &mut replies.attempted);
        let attempted = attempted.into_iter().flatten();
        for ((name, attempted), unclaimed) in requests.attempts.iter().zip(attempted).zip(unclaimed)
        {
            if matches!(attempted, Ok(None)) {
                let confirm = |connection: &mut _| confirm_busy(self, connection, name, unclaimed);
                *attempted = session.run(limit, confirm).flatten();
            }
        }
        self.apply(session, requests, &result);
        result
    }

    /// Starts [`call`](Self::call) on another thread. It continues when the caller has stopped waiting, and
    /// then gives back what it was granted. Attempts alone wait for the session within `limit`.
    pub(crate) fn start(
        self: &Arc<Self>,
        session: &Arc<Session>,
        requests: Requests,
        limit: Duration,
    ) -> Call<Replies> {
        let requests = Arc::new(requests);
        let limit = match requests.attempts.len() == requests.count() {
            true => limit,
            false => session.longest_call(),
        };
        let (sessions, theirs, all) =
            (Arc::clone(self), Arc::clone(session), Arc::clone(&requests));
        let started = self.calls.start(move |reply| {
            let result = sessions.call(&theirs, &all, limit);
            if let Err(SendError(Ok(late))) = reply.send(result) {
                sessions.give_back(&theirs, late.granted());
            }
        });
        match started {
            Ok(reply) => Call::Started(reply),
            Err(failure) => {
                let failed = Err(failure);
                self.apply(session, &requests, &failed);
                Call::Done(failed)
            }
        }
    }

    /// Releases names for which no caller waits any more.
    fn give_back(&self, session: &Session, names: Vec<EncodedName>) {
        if !names.is_empty() {
            let _ = self.call(session, &Requests::releases(names), session.longest_call());
        }
    }

    /// Forgets names that were released or not granted, or leaves them to the sweeper where the server did
    /// not get the request or refused it.
    fn apply(&self, session: &Session, requests: &Requests, result: &Result<Replies, Failure>) {
        let (mut gone, mut left_over) = (Vec::new(), Vec::new());
        match result {
            Ok(replies) => {
                gone.extend(&requests.releases);
                for (name, attempted) in requests.attempted(replies) {
                    match attempted {
                        Ok(Some(taken)) => session.state().rename(name, &taken.name),
                        // The server may have granted the name all the same.
                        Err(Failure::Refused(_)) => left_over.push(name),
                        Ok(None) | Err(_) => gone.push(name),
                    }
                }
            }
            Err(Failure::NotSent(_)) => {
                left_over.extend(&requests.releases);
                gone.extend(&requests.attempts);
            }
            Err(Failure::Refused(_)) => {
                let mut state = session.state();
                state.is_spent = true;
                let names = requests.releases.iter().chain(&requests.attempts);
                // The connection closes with its last name, and then the server frees that.
                match state.names.len() > 1 {
                    true => left_over.extend(names),
                    false => gone.extend(names),
                }
            }
            Err(Failure::Closed(_)) => {
                gone.extend(requests.releases.iter().chain(&requests.attempts));
            }
            // The session is in doubt, and is closed when no other lease on it lasts.
            Err(Failure::Unanswered(_)) => {
                let names = requests.releases.iter().chain(&requests.attempts);
                session.state().leave_unanswered(names);
            }
        }
        for name in left_over {
            self.leave_over(session, name);
        }
        session.leave(gone);
    }

    /// Ends expired leases, and returns the time of the next sweep.
    fn sweep(self: &Arc<Self>, now: HostInstant) -> HostInstant {
        let sessions = self.live().clone();
        let mut next = HostInstant::NEVER;
        for session in sessions {
            let (expired, then) = session.state().take_expired(now);
            session.retire();
            next = next.min(then);
            if !expired.is_empty() {
                let _ = self.start(&session, Requests::releases(expired), Duration::ZERO);
            }
        }
        next
    }
}
