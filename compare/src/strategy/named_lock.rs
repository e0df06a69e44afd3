//! `GET_LOCK` and `RELEASE_LOCK`: MySQL's named locks, as the write-up uses them. A lock belongs to
//! a session, so every thread that holds or waits keeps a connection to itself, out of a pool for
//! locks only: a hundred threads, a hundred connections.
//!
//! There is no lease. A lock is free when its session ends: at once when the program dies, and never
//! as long as it lives. The same session gets the same lock again, and releases it as often.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Duration;

use lockkeeper::CancelRegistration;
use mysql::Conn;
use mysql::prelude::Queryable;
use parking_lot::Mutex;

use super::lock::{Held, Lock, LockRequest};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::mysql::MySqlConfig;
use crate::store::pool::{POOL_TIMEOUT, Pool, Pooled};

pub(crate) struct NamedLock {
    timeout: Duration,
    sessions: Arc<Sessions>,
    /// Ends the waits inside the server when the comparison is cancelled.
    _wake: CancelRegistration,
    /// Dropped after the sessions, which are connections of it.
    pool: Arc<Pool<Conn>>,
}

impl NamedLock {
    /// Uses a pool of its own, with a connection for each of these threads.
    pub(crate) fn dedicated(
        config: &MySqlConfig,
        threads: u32,
        cancel: &Cancellation,
    ) -> Result<Self, Error> {
        let pool = Arc::new(config.pool(0..=threads)?);
        Ok(Self::on(config, pool, POOL_TIMEOUT, cancel))
    }

    /// Uses this pool; a thread waits for a connection until `timeout`.
    pub(crate) fn on(
        config: &MySqlConfig,
        pool: Arc<Pool<Conn>>,
        timeout: Duration,
        cancel: &Cancellation,
    ) -> Self {
        let sessions = Arc::new(Sessions::default());
        let (waiting, config) = (Arc::clone(&sessions), config.clone());
        Self {
            pool,
            timeout,
            sessions,
            _wake: cancel.token().on_cancel(move || {
                let (waiting, config) = (Arc::clone(&waiting), config.clone());
                // The thread that cancels does not wait for the server.
                thread::spawn(move || waiting.kill(&config));
            }),
        }
    }

    /// Returns the session of this thread.
    fn session(&self) -> Result<Session, Error> {
        let thread = thread::current().id();
        if let Some((_, session)) = self.sessions.0.lock().get(&thread) {
            return Ok(Arc::clone(session));
        }
        let connection = self.pool.get(self.timeout)?;
        let id = connection.connection_id();
        let session = Arc::new(Mutex::new(connection));
        let mut sessions = self.sessions.0.lock();
        sessions.insert(thread, (id, Arc::clone(&session)));
        Ok(session)
    }
}

impl Lock for NamedLock {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let (thread, session) = (thread::current().id(), self.session()?);
        // MySQL knows whole seconds only.
        let wait = request.wait.as_secs_f64().ceil();
        let granted = query(&session, &format!("SELECT GET_LOCK('{name}', {wait})"));
        let sessions = Arc::clone(&self.sessions);
        if !matches!(granted, Ok(Some(1))) {
            sessions.give_back(thread, session);
            return granted.map(|_| None);
        }
        let name = name.to_owned();
        Ok(Some(Held::new(move || {
            let released = query(&session, &format!("SELECT RELEASE_LOCK('{name}')"));
            sessions.give_back(thread, session);
            released.map(drop)
        })))
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

type Session = Arc<Mutex<Pooled<Conn>>>;

/// The sessions in use, by thread, with their ids.
#[derive(Default)]
struct Sessions(Mutex<HashMap<ThreadId, (u32, Session)>>);

impl Sessions {
    /// Returns the session to the pool, unless its thread holds another lock.
    fn give_back(&self, thread: ThreadId, session: Session) {
        let mut sessions = self.0.lock();
        // One reference here, and one in the map.
        if Arc::strong_count(&session) == 2 {
            sessions.remove(&thread);
        }
        drop(session);
    }

    /// Makes the server end all sessions.
    fn kill(&self, config: &MySqlConfig) {
        let sessions: Vec<_> = self.0.lock().values().map(|(id, _)| *id).collect();
        // If the server is gone, the sessions are gone, too.
        if let Ok(mut connection) = config.connect() {
            for id in sessions {
                let _ = connection.query_drop(format!("KILL {id}"));
            }
        }
    }
}

fn query(session: &Session, sql: &str) -> Result<Option<i64>, Error> {
    Ok(session.lock().query_first(sql)?.flatten())
}
