//! Locks that belong to a session: every thread that holds or waits keeps a connection to itself, out of
//! a pool for locks only. A hundred threads, a hundred connections.
//!
//! There is no lease. A lock is free when its session ends: at once when the program dies, and never
//! as long as it lives. The same session gets the same lock again, and releases it as often.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use lockkeeper::{CancelRegistration, Usage};
use parking_lot::Mutex;

use super::lock::{Held, Lock, LockRequest};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::pool::{POOL_TIMEOUT, Pool, Pooled};

/// A server with locks that belong to sessions.
pub(super) trait LockServer: Clone + Send + Sync + 'static {
    type Session: LockSession;

    fn open_session(&self) -> Result<Self::Session, Error>;

    /// Makes the server end these sessions, and with them their waits.
    fn end(&self, sessions: &[u32]) -> Result<(), Error>;
}

/// A session of such a server.
pub(super) trait LockSession: Send + 'static {
    /// Returns the number by which the server ends the session.
    fn id(&self) -> u32;

    /// Acquires a lock, and returns whether it was free within `wait`.
    fn lock(&mut self, name: &str, wait: Duration) -> Result<bool, Error>;

    fn unlock(&mut self, name: &str) -> Result<(), Error>;
}

pub(super) struct SessionLock<S: LockServer> {
    timeout: Duration,
    sessions: Arc<Sessions<S::Session>>,
    /// Ends the waits inside the server when the comparison is cancelled.
    _wake: CancelRegistration,
    /// Dropped after the sessions, which are connections of it.
    pool: Arc<Pool<S::Session>>,
}

impl<S: LockServer> SessionLock<S> {
    /// Uses a pool of its own, with a connection for each of these threads.
    pub(super) fn dedicated(
        server: &S,
        threads: u32,
        cancel: &Cancellation,
    ) -> Result<Self, Error> {
        let connect = server.clone();
        let pool = Pool::open(0..=threads, move || connect.open_session())?;
        Ok(Self::on(server, Arc::new(pool), POOL_TIMEOUT, cancel))
    }

    /// Uses this pool; a thread waits for a connection until `timeout`.
    pub(super) fn on(
        server: &S,
        pool: Arc<Pool<S::Session>>,
        timeout: Duration,
        cancel: &Cancellation,
    ) -> Self {
        let sessions = Arc::new(Sessions::default());
        let (waiting, server) = (Arc::clone(&sessions), server.clone());
        Self {
            pool,
            timeout,
            sessions,
            _wake: cancel.token().on_cancel(move || {
                let (waiting, server) = (Arc::clone(&waiting), server.clone());
                // The thread that cancels does not wait for the server. If that is gone, the sessions are gone, too.
                thread::spawn(move || server.end(&waiting.ids()));
            }),
        }
    }

    /// Returns the session of this thread.
    fn session(&self) -> Result<Session<S::Session>, Error> {
        let thread = thread::current().id();
        if let Some((_, session)) = self.sessions.by_thread.lock().get(&thread) {
            return Ok(Arc::clone(session));
        }
        let connection = self.pool.get(self.timeout)?;
        let id = connection.id();
        let session = Arc::new(Mutex::new(connection));
        let mut sessions = self.sessions.by_thread.lock();
        sessions.insert(thread, (id, Arc::clone(&session)));
        Ok(session)
    }
}

impl<S: LockServer> Lock for SessionLock<S> {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let (thread, session) = (thread::current().id(), self.session()?);
        self.sessions.sent.fetch_add(1, Ordering::Relaxed);
        let granted = session.lock().lock(name, request.wait);
        let sessions = Arc::clone(&self.sessions);
        if !matches!(granted, Ok(true)) {
            sessions.give_back(thread, session);
            return granted.map(|_| None);
        }
        let name = name.to_owned();
        Ok(Some(Held::new(move || {
            sessions.sent.fetch_add(1, Ordering::Relaxed);
            let released = session.lock().unlock(&name);
            sessions.give_back(thread, session);
            released
        })))
    }

    /// Counts requests, for servers that do not count.
    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            commands: self.sessions.sent.load(Ordering::Relaxed),
            connections: self.pool.open_connections(),
        })
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

type Session<C> = Arc<Mutex<Pooled<C>>>;

/// The sessions in use, by thread, with their ids.
struct Sessions<C: Send + 'static> {
    by_thread: Mutex<HashMap<ThreadId, (u32, Session<C>)>>,
    /// The requests of all sessions so far.
    sent: AtomicU64,
}

impl<C: Send + 'static> Default for Sessions<C> {
    fn default() -> Self {
        Self {
            by_thread: Mutex::default(),
            sent: AtomicU64::new(0),
        }
    }
}

impl<C: Send + 'static> Sessions<C> {
    /// Returns the session to the pool, unless its thread holds another lock.
    fn give_back(&self, thread: ThreadId, session: Session<C>) {
        let mut sessions = self.by_thread.lock();
        // One reference here, and one in the map.
        if Arc::strong_count(&session) == 2 {
            sessions.remove(&thread);
        }
        drop(session);
    }

    fn ids(&self) -> Vec<u32> {
        self.by_thread.lock().values().map(|(id, _)| *id).collect()
    }
}
