//! The sessions that hold names, and the sweeper that ends leases that no guard renews.
//!
//! Nothing in here is SQL. Any store that binds its locks to sessions has the same states and calls.

mod detached;
mod session;
mod state;

pub(crate) use session::{Session, idle_seconds};
pub(crate) use state::Entry;

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, HostInstant, LeaseVerifiers, Tick, Timer};
use lockkeeper_remote::Failure;
use parking_lot::{Mutex, MutexGuard};

use crate::names::EncodedName;
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
    pub(crate) calls: DetachedCalls,
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

    pub(crate) fn add(&self, session: &Arc<Session>) {
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

    /// Enters `name` in a session of the same ttl, and returns the session. Prefers sessions without a
    /// call under way, and of these the one with the fewest names.
    pub(crate) fn enter(&self, name: &EncodedName, idle_seconds: u64) -> Option<Arc<Session>> {
        let list = self.list.lock();
        let mut fit: Vec<_> = list
            .iter()
            .filter(|session| session.idle_seconds == idle_seconds)
            .collect();
        fit.sort_by_cached_key(|session| (session.is_busy(), session.state().names.len()));
        fit.into_iter()
            .find(|session| session.state().enter(name))
            .map(Arc::clone)
    }

    /// Changes the entry of a name, which the sweeper releases when its time is over.
    pub(crate) fn set(&self, session: &Session, name: &EncodedName, entry: Entry) {
        session.state().set(name, entry);
        self.sweeper.note(entry.until);
    }

    /// Has the sweeper release a name that no guard holds.
    pub(crate) fn leave_over(&self, session: &Session, name: &EncodedName) {
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

    /// Releases a name that no guard holds, and returns whether the session held it.
    pub(crate) fn release(&self, session: &Session, name: &EncodedName) -> Result<bool, Failure> {
        let freed = session.run(session.longest_call(), |connection| {
            connection.release(name)
        });
        self.released(session, name, freed)
    }

    /// Forgets a name that was released, or leaves it to the sweeper if the server did not get the
    /// request or refused it.
    pub(crate) fn released(
        &self,
        session: &Session,
        name: &EncodedName,
        freed: Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let is_left_over = match &freed {
            Err(Failure::NotSent(_)) => true,
            Err(Failure::Refused(_)) => {
                let mut state = session.state();
                state.is_spent = true;
                // The connection closes with its last name, and then the server frees that.
                state.names.len() > 1
            }
            Ok(_) | Err(Failure::Closed(_) | Failure::Unanswered(_)) => false,
        };
        if is_left_over {
            self.leave_over(session, name);
        } else {
            session.leave(name);
        }
        freed
    }

    /// Starts to release names that no guard holds, on a thread of its own, and returns the last result.
    pub(crate) fn start_release(
        self: &Arc<Self>,
        session: &Arc<Session>,
        names: Vec<EncodedName>,
    ) -> Result<Receiver<Result<bool, Failure>>, Failure> {
        let (sessions, theirs, all) = (Arc::clone(self), Arc::clone(session), names.clone());
        self.calls
            .start(move |reply| {
                let release = |_, name| sessions.release(&theirs, name);
                let _ = reply.send(names.iter().fold(Ok(false), release));
            })
            .inspect_err(|_| all.iter().for_each(|name| self.leave_over(session, name)))
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
                let _ = self.start_release(&session, expired);
            }
        }
        next
    }
}
