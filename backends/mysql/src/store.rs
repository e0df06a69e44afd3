//! The parts that a provider and its leases share: the pool, and the sessions that hold names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, HostInstant, Timer};
use lockkeeper_remote::{Failure, Pool};
use parking_lot::Mutex;

use crate::connection::{Connection, Connector, LockReply};
use crate::names::EncodedName;
use crate::opening::Found;
use crate::options::MySqlOptions;
use crate::session::Session;
use crate::statements::{self, Flavour, SessionId};

/// The time until the next attempt to end a lease.
const SWEEP_RETRY: Duration = Duration::from_millis(100);

/// A slot of the pool. Its connection, if one is open, holds no name while it is in the pool.
pub(crate) type PooledConn = lockkeeper_remote::PooledConn<Connection>;

pub(crate) struct Store {
    pub(crate) connector: Connector,
    pub(crate) options: MySqlOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) flavour: Flavour,
    /// Ends leases that nobody renews, while other names keep their session alive. It never waits for
    /// the server.
    pub(crate) sweeper: Timer,
    /// The number of callers that wait in the server.
    pub(crate) waiting: AtomicU32,
    pool: Pool<Connection>,
    /// The sessions that hold names.
    sessions: Mutex<Vec<Arc<Session>>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("server", &self.connector.server)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// A store on a server that was inspected on `connection`, which goes into the pool.
    pub(crate) fn new(
        options: &MySqlOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
        connector: Connector,
        found: &Found,
        connection: Connection,
    ) -> Result<Arc<Self>, Error> {
        let pool = Pool::new(options.remote.pool_size);
        if let Some(mut slot) = pool.try_checkout() {
            slot.connection = Some(connection);
        }
        let store = Arc::new(Self {
            connector,
            options: options.clone(),
            namespace: namespace.to_owned(),
            sweeper: Timer::new(Arc::clone(&clock)),
            clock,
            flavour: found.flavour,
            waiting: AtomicU32::new(0),
            pool,
            sessions: Mutex::default(),
        });
        let weak = Arc::downgrade(&store);
        store.sweeper.start("lockkeeper-mysql-sweep", move |tick| {
            Some(weak.upgrade()?.sweep(tick.now))
        })?;
        Ok(store)
    }

    /// Returns the time that a single attempt may take.
    pub(crate) fn attempt(&self) -> Duration {
        self.options.remote.attempt_time()
    }

    /// Returns a slot of the pool if one is free.
    pub(crate) fn try_checkout(&self) -> Option<PooledConn> {
        self.pool.try_checkout()
    }

    /// Returns a slot of the pool as soon as one is free.
    pub(crate) fn checkout(&self, left: Duration) -> Result<PooledConn, Failure> {
        let slot = self
            .pool
            .checkout(left.min(self.options.remote.response_timeout));
        slot.ok_or_else(|| Failure::NotSent(self.exhausted()))
    }

    pub(crate) fn exhausted(&self) -> Error {
        let hold = self.sessions.lock().len();
        let wait = self.waiting.load(Ordering::Relaxed);
        self.connector.server.exhausted(
            self.options.remote.pool_size,
            &format!(": {hold} hold locks and {wait} wait for one"),
            " (and the server's `max_connections`), or wait for fewer names at once",
        )
    }

    /// Runs `work` on the connection of a slot: see [`lockkeeper_remote::PooledConn::run`].
    pub(crate) fn with_connection<T>(
        &self,
        slot: &mut PooledConn,
        left: Duration,
        mut work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let longest = self.options.remote.response_timeout;
        let connect = |limit| self.connector.connect(limit);
        let deadline = self.clock.now() + left;
        slot.run(&*self.clock, deadline, connect, |connection, limit| {
            work(connection, limit.min(longest))
        })
    }

    /// Adds a session that now holds a name.
    pub(crate) fn keep(&self, session: &Arc<Session>, until: HostInstant) {
        self.sessions.lock().push(Arc::clone(session));
        self.sweeper.note(until);
    }

    /// Forgets a name of a session, and the session with its last name.
    pub(crate) fn leave(&self, session: &Arc<Session>, name: &str) {
        if session.leave(name) {
            self.forget(session);
            session.retire();
        }
    }

    /// Forgets a name that was released, or leaves it to the sweeper if the server did not get the
    /// request or refused it.
    pub(crate) fn given_back(
        &self,
        session: &Arc<Session>,
        name: &str,
        freed: &Result<bool, Failure>,
    ) {
        match freed {
            Err(Failure::NotSent(_)) => self.leave_to_sweeper(session, name),
            Err(Failure::Refused(_)) => {
                session.spend();
                // The connection closes with its last name, and then the server frees that.
                if session.count() > 1 {
                    self.leave_to_sweeper(session, name);
                } else {
                    self.leave(session, name);
                }
            }
            Ok(_) | Err(Failure::Closed(_) | Failure::Unanswered(_)) => self.leave(session, name),
        }
    }

    /// Has the sweeper release a name that no guard holds.
    pub(crate) fn leave_to_sweeper(&self, session: &Session, name: &str) {
        let soon = self.clock.now() + SWEEP_RETRY;
        session.leave_to_sweeper(name, soon);
        self.sweeper.note(soon);
    }

    /// Removes a session, so that it gets no more names.
    fn forget(&self, session: &Arc<Session>) {
        self.sessions
            .lock()
            .retain(|other| !Arc::ptr_eq(other, session));
    }

    /// Returns whether new names share the existing sessions. Half of the pool is for waits.
    pub(crate) fn shares(&self) -> bool {
        let most = usize::try_from(self.options.remote.pool_size / 2).unwrap_or(usize::MAX);
        self.sessions.lock().len() >= most.max(1)
    }

    /// Enters `name` in a session of the same ttl, and returns the session. Prefers sessions without a
    /// call under way, and of these the one with the fewest names.
    pub(crate) fn enter(&self, name: &EncodedName, idle_seconds: u64) -> Option<Arc<Session>> {
        let sessions = self.sessions.lock();
        let mut fit: Vec<_> = sessions
            .iter()
            .filter(|session| session.idle_seconds == idle_seconds)
            .collect();
        fit.sort_by_cached_key(|session| (session.is_busy(), session.count()));
        fit.into_iter()
            .find(|session| session.enter(name))
            .map(Arc::clone)
    }

    /// Finds out whether another process or guard holds a name that the server did not grant to this
    /// connection, or an earlier request of this store that was not answered. Costs a statement only
    /// while there is such a request.
    ///
    /// `unclaimed` is the answer of [`unclaimed`](Self::unclaimed) from before the server was asked: such
    /// a request may have held the name then, and have given it back before the reply was here.
    pub(crate) fn confirm_busy(
        &self,
        connection: &mut Connection,
        name: &EncodedName,
        unclaimed: Vec<SessionId>,
        limit: Duration,
    ) -> Result<LockReply, Failure> {
        let abandoned = &self.connector.abandoned;
        let mut own = unclaimed;
        own.extend(self.unclaimed(name, connection.session()));
        if own.is_empty() && !abandoned.any() {
            return Ok(LockReply::Busy);
        }
        let Some(holder) = connection.holder(name, limit)? else {
            // The name is free by now, so the holder may have been such a request.
            return Ok(LockReply::Abandoned);
        };
        if abandoned.has(holder) {
            let end = statements::end_holder(name, holder);
            return match connection.query(&end, limit) {
                // Refused: the session has ended by itself.
                Ok(_) | Err(Failure::Refused(_)) => Ok(LockReply::Abandoned),
                Err(failure) => Err(failure),
            };
        }
        let is_own = own.iter().any(|session| session.is(holder));
        Ok(if is_own {
            LockReply::Abandoned
        } else {
            LockReply::Busy
        })
    }

    /// Returns the sessions on which the server may hold the name while no guard of this process
    /// does, except one.
    pub(crate) fn unclaimed(&self, name: &EncodedName, except: SessionId) -> Vec<SessionId> {
        let now = self.clock.now();
        let sessions = self.sessions.lock();
        let unclaimed = sessions
            .iter()
            .filter(|session| session.id != except && session.has_unclaimed(name, now));
        unclaimed.map(|session| session.id).collect()
    }

    /// Runs `work` on a session. A session that has ended holds no names any more.
    pub(crate) fn ask<T>(
        &self,
        session: &Arc<Session>,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.forget_if_closed(session, session.run(left, work))
    }

    /// Runs `work` on a session that holds one name: see [`Session::run_alone`].
    pub(crate) fn ask_alone<T>(
        &self,
        session: &Arc<Session>,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let result = session.run_alone(left, work)?;
        Some(self.forget_if_closed(session, result))
    }

    fn forget_if_closed<T>(
        &self,
        session: &Arc<Session>,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if matches!(result, Err(Failure::Closed(_))) {
            self.forget(session);
        }
        result
    }

    /// Ends expired leases, those of each session on a thread of its own. Returns the time of the next
    /// sweep.
    pub(crate) fn sweep(self: &Arc<Self>, now: HostInstant) -> HostInstant {
        let sessions = self.sessions.lock().clone();
        let mut next = HostInstant::NEVER;
        for session in sessions {
            let (expired, then) = session.take_expired(now);
            next = next.min(then);
            if expired.is_empty() {
                continue;
            }
            if session.is_in_doubt() {
                for name in &expired {
                    self.leave(&session, name);
                }
                continue;
            }
            let (store, theirs, names) = (Arc::clone(self), Arc::clone(&session), expired.clone());
            let spawned = thread::Builder::new()
                .name("lockkeeper-mysql-call".to_owned())
                .spawn(move || store.end(&theirs, &names));
            if spawned.is_err() {
                let again = now + SWEEP_RETRY;
                for name in &expired {
                    session.leave_to_sweeper(name, again);
                }
                next = next.min(again);
            }
        }
        next
    }

    /// Releases names that no guard holds.
    pub(crate) fn end(&self, session: &Arc<Session>, names: &[EncodedName]) {
        let limit = Duration::from_secs(session.idle_seconds);
        for name in names {
            let freed = self.ask(session, limit, |connection, _| {
                connection.release(name, limit)
            });
            self.given_back(session, name, &freed);
        }
    }
}
