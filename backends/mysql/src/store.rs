//! What a provider and its leases share: the pool, and the sessions that hold names.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant};
use parking_lot::Mutex;
use r2d2::ManageConnection;
use scheduled_thread_pool::ScheduledThreadPool;

use crate::connection::{Connection, Connector, Sight};
use crate::failure::Failure;
use crate::names::EncodedName;
use crate::opening::Found;
use crate::options::MySqlOptions;
use crate::session::Session;
use crate::statements::{self, Flavour, SessionId};
use crate::sweeper::Sweeper;

/// When to try again to end a lease.
const AGAIN: Duration = Duration::from_millis(100);

/// A place in the pool. Its connection is opened by who needs it, within that one's time, and
/// dropped when it failed; the place stays. A connection that lies here holds no name.
#[derive(Debug, Default)]
pub(crate) struct Slot(pub(crate) Option<Connection>);

/// A place that somebody has.
pub(crate) type Place = r2d2::PooledConnection<Places>;

/// Makes places and no connections: r2d2 would open those on a thread of its own, try again and
/// again without telling why it fails, and keep who asks waiting.
#[derive(Debug)]
pub(crate) struct Places;

impl ManageConnection for Places {
    type Connection = Slot;
    type Error = Error;

    fn connect(&self) -> Result<Slot, Error> {
        Ok(Slot::default())
    }

    fn is_valid(&self, _: &mut Slot) -> Result<(), Error> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Slot) -> bool {
        false
    }
}

pub(crate) struct Store {
    pub(crate) connector: Connector,
    pub(crate) options: MySqlOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) flavour: Flavour,
    pub(crate) sweeper: Arc<Sweeper>,
    /// How many wait in the server.
    pub(crate) waiting: AtomicU32,
    pool: r2d2::Pool<Places>,
    /// Those that hold names.
    sessions: Mutex<Vec<Arc<Session>>>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("place", &self.connector.place())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.sweeper.stop();
    }
}

impl Store {
    /// Of a server that was looked at by means of `connection`.
    pub(crate) fn new(
        options: &MySqlOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
        connector: Connector,
        found: &Found,
        connection: Connection,
    ) -> Result<Arc<Self>, Error> {
        let makers = ScheduledThreadPool::builder()
            .num_threads(1)
            .thread_name_pattern("lockkeeper-mysql-pool")
            .build();
        let pool = r2d2::Pool::builder()
            .max_size(options.pool_size)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_on_check_out(false)
            .thread_pool(Arc::new(makers))
            // Waits until all places are there: making them cannot fail.
            .build(Places)
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "the pool cannot be made").with_source(error)
            })?;
        if let Some(mut place) = pool.try_get() {
            place.0 = Some(connection);
        }
        let store = Arc::new(Self {
            connector,
            options: options.clone(),
            namespace: namespace.to_owned(),
            clock,
            flavour: found.flavour,
            sweeper: Sweeper::new(),
            waiting: AtomicU32::new(0),
            pool,
            sessions: Mutex::default(),
        });
        Sweeper::start(&store)?;
        Ok(store)
    }

    /// How long a single attempt may take.
    pub(crate) fn attempt(&self) -> Duration {
        self.options
            .response_timeout
            .max(self.options.connect_timeout)
    }

    /// A place that is free now.
    pub(crate) fn try_place(&self) -> Option<Place> {
        self.pool.try_get()
    }

    /// A place, as soon as one is free.
    pub(crate) fn place(&self, left: Duration) -> Result<Place, Failure> {
        if let Some(place) = self.pool.try_get() {
            return Ok(place);
        }
        let patience = left.min(self.options.response_timeout);
        let place = self.pool.get_timeout(patience);
        place.map_err(|_| Failure::NotSent(self.exhausted()))
    }

    pub(crate) fn exhausted(&self) -> Error {
        let hold = self.sessions.lock().len();
        let wait = self.waiting.load(Ordering::Relaxed);
        Error::new(
            ErrorKind::PoolExhausted,
            format!(
                "all {} connections to the server are in use: {hold} hold locks and {wait} wait for one; raise `pool_size` (and the server's `max_connections`), or wait for fewer names at once",
                self.options.pool_size
            ),
        )
    }

    /// Has the connection of a place do `work`, which may take the limit that it is given. One on
    /// which something failed is closed. One that the server had closed before is replaced at
    /// once: what it may have been granted went with it.
    pub(crate) fn with_connection<T>(
        &self,
        place: &mut Place,
        left: Duration,
        mut work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let until = self.clock.now() + left;
        let mut limit = left;
        loop {
            let (mut connection, is_used) = match place.0.take() {
                Some(connection) => (connection, true),
                None => {
                    let opened = self.connector.connect(limit).map_err(Failure::NotSent)?;
                    limit = until.saturating_since(self.clock.now());
                    (opened, false)
                }
            };
            match work(&mut connection, limit.min(self.options.response_timeout)) {
                Ok(value) => {
                    place.0 = Some(connection);
                    return Ok(value);
                }
                Err(Failure::Closed(_)) if is_used => {
                    limit = until.saturating_since(self.clock.now());
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Keeps a session that holds a name now.
    pub(crate) fn keep(&self, session: &Arc<Session>, until: HostInstant) {
        self.sessions.lock().push(Arc::clone(session));
        self.sweeper.note(until);
    }

    /// Forgets a name of a session's, and the session where that was the last one.
    pub(crate) fn leave(&self, session: &Arc<Session>, name: &str) {
        if session.leave(name) {
            self.forget(session);
            session.retire();
        }
    }

    /// Forgets a name that was given back, or leaves that to the sweeper where the server was not
    /// asked or would not do it.
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
                // With the last name goes the connection, and then the server frees it.
                if session.count() > 1 {
                    self.leave_to_sweeper(session, name);
                } else {
                    self.leave(session, name);
                }
            }
            Ok(_) | Err(Failure::Closed(_) | Failure::Unanswered(_)) => self.leave(session, name),
        }
    }

    /// Has the sweeper give back a name that nobody believes in.
    pub(crate) fn leave_to_sweeper(&self, session: &Session, name: &str) {
        let soon = self.clock.now() + AGAIN;
        session.leave_to_sweeper(name, soon);
        self.sweeper.note(soon);
    }

    /// No more names come to a session, and it counts no more.
    fn forget(&self, session: &Arc<Session>) {
        self.sessions
            .lock()
            .retain(|other| !Arc::ptr_eq(other, session));
    }

    /// Whether names that are taken from now on share the sessions that there are. Half of the pool
    /// is for waits.
    pub(crate) fn shares(&self) -> bool {
        let most = usize::try_from(self.options.pool_size / 2).unwrap_or(usize::MAX);
        self.sessions.lock().len() >= most.max(1)
    }

    /// A session of the same ttl on which `name` may be asked for, with a place for it there: one
    /// on which nobody asks right now, and of these the one with the fewest names.
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
    pub(crate) fn confirm_busy(
        &self,
        connection: &mut Connection,
        name: &EncodedName,
        limit: Duration,
    ) -> Result<Sight, Failure> {
        let counts = &self.connector.counts;
        let own = self.unclaimed(name, connection.session());
        if own.is_empty() && !counts.has_abandoned() {
            return Ok(Sight::Busy);
        }
        let Some(holder) = connection.holder(name, limit)? else {
            // It was free by then, so the holder may have been such a request.
            return Ok(Sight::Abandoned);
        };
        if counts.is_abandoned(holder) {
            let end = statements::end_holder(name, holder);
            return match connection.query(&end, limit) {
                // Refused: the session has ended by itself.
                Ok(_) | Err(Failure::Refused(_)) => Ok(Sight::Abandoned),
                Err(failure) => Err(failure),
            };
        }
        let is_own = own.iter().any(|session| session.is(holder));
        Ok(if is_own {
            Sight::Abandoned
        } else {
            Sight::Busy
        })
    }

    /// Returns the sessions on which the server may hold the name while no guard of this process
    /// does, except one.
    fn unclaimed(&self, name: &EncodedName, except: SessionId) -> Vec<SessionId> {
        let now = self.clock.now();
        let sessions = self.sessions.lock();
        let unclaimed = sessions
            .iter()
            .filter(|session| session.id != except && session.has_unclaimed(name, now));
        unclaimed.map(|session| session.id).collect()
    }

    /// Asks on a session; one that has ended holds nothing more.
    pub(crate) fn ask<T>(
        &self,
        session: &Arc<Session>,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.asked(session, session.run(left, work))
    }

    /// Asks on a session that holds one name; see [`Session::run_alone`].
    pub(crate) fn ask_alone<T>(
        &self,
        session: &Arc<Session>,
        left: Duration,
        work: impl FnOnce(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let result = session.run_alone(left, work)?;
        Some(self.asked(session, result))
    }

    fn asked<T>(&self, session: &Arc<Session>, result: Result<T, Failure>) -> Result<T, Failure> {
        if matches!(result, Err(Failure::Closed(_))) {
            self.forget(session);
        }
        result
    }

    /// Ends what is over, each session's on a thread of its own. Returns when to look again.
    pub(crate) fn sweep(self: &Arc<Self>, now: HostInstant) -> HostInstant {
        let sessions = self.sessions.lock().clone();
        let mut next = HostInstant::NEVER;
        for session in sessions {
            let (expired, then) = session.expired(now);
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
                let again = now + AGAIN;
                for name in &expired {
                    session.leave_to_sweeper(name, again);
                }
                next = next.min(again);
            }
        }
        next
    }

    /// Gives back what nobody claims.
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
