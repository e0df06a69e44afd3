//! `GET_LOCK` and `RELEASE_LOCK`: MySQL's named locks, as the write-up uses them. A lock belongs to
//! a session, so every thread that holds or waits keeps a connection to itself, out of a pool that
//! is for nothing else: a hundred threads, a hundred connections.
//!
//! There is no lease. A lock is free when its session ends: at once when the program dies, and never
//! as long as it lives. The same session gets the same lock again, and frees it as often.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use lockkeeper::{CancelRegistration, CancelToken};
use mysql::prelude::Queryable;
use mysql::{Pool, PooledConn};

use super::lock::{Held, Lock, Terms};
use crate::error::Failure;
use crate::store::mysql::{Door, from_pool};

/// Where there are more requests than threads were planned for: for a connection of the pool.
const PATIENCE: Duration = Duration::from_secs(60);

/// `GET_LOCK` on connections of a pool.
#[derive(Debug)]
pub(crate) struct NamedLock {
    pool: Pool,
    patience: Duration,
    sessions: Arc<Sessions>,
    /// Ends what waits in the server when the run is interrupted.
    _wake: CancelRegistration,
}

impl NamedLock {
    /// On a pool of its own, with a connection for each of so many threads.
    pub(crate) fn dedicated(
        door: &Door,
        threads: u32,
        stop: &CancelToken,
    ) -> Result<Self, Failure> {
        let most = usize::try_from(threads).unwrap_or(usize::MAX);
        Ok(Self::on(door, &door.pool(0, most)?, PATIENCE, stop))
    }

    /// On a pool, whose connections are waited for no longer than `patience`.
    pub(crate) fn on(door: &Door, pool: &Pool, patience: Duration, stop: &CancelToken) -> Self {
        let sessions = Arc::new(Sessions::default());
        let (to_end, door) = (Arc::clone(&sessions), door.clone());
        Self {
            pool: pool.clone(),
            patience,
            sessions,
            _wake: stop.on_cancel(move || {
                let (to_end, door) = (Arc::clone(&to_end), door.clone());
                // Whoever cancels is not to wait for the server.
                thread::spawn(move || to_end.kill(&door));
            }),
        }
    }

    /// The session of this thread.
    fn session(&self) -> Result<Arc<Session>, Failure> {
        let thread = thread::current().id();
        if let Some(session) = self.sessions.lock().get(&thread) {
            return Ok(Arc::clone(session));
        }
        let connection = from_pool(&self.pool, self.patience)?;
        let session = Arc::new(Session {
            id: connection.connection_id(),
            connection: Mutex::new(connection),
        });
        self.sessions.lock().insert(thread, Arc::clone(&session));
        Ok(session)
    }
}

impl Lock for NamedLock {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let session = self.session()?;
        let mut hold = Hold {
            sessions: Arc::clone(&self.sessions),
            thread: thread::current().id(),
            session: Some(session),
            name: String::new(),
        };
        // MySQL knows whole seconds only.
        let wait = terms.wait.as_secs_f64().ceil();
        let got = hold.ask(&format!("SELECT GET_LOCK('{name}', {wait})"))?;
        Ok((got == Some(1)).then(|| {
            hold.name = name.to_owned();
            Box::new(hold) as Box<dyn Held>
        }))
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

/// The connections in use, by thread.
#[derive(Debug, Default)]
struct Sessions(Mutex<HashMap<ThreadId, Arc<Session>>>);

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, HashMap<ThreadId, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the server end all of them.
    fn kill(&self, door: &Door) {
        let sessions: Vec<_> = self.lock().values().map(|session| session.id).collect();
        // Where the server is gone, they are, too.
        if let Ok(mut connection) = door.connect() {
            for id in sessions {
                let _ = connection.query_drop(format!("KILL {id}"));
            }
        }
    }
}

#[derive(Debug)]
struct Session {
    id: u32,
    connection: Mutex<PooledConn>,
}

/// A lock that is held by a session, or the session before it has one.
struct Hold {
    sessions: Arc<Sessions>,
    thread: ThreadId,
    /// `None` once it is let go.
    session: Option<Arc<Session>>,
    /// Empty: there is nothing to release.
    name: String,
}

impl Hold {
    fn ask(&self, sql: &str) -> Result<Option<i64>, Failure> {
        let Some(session) = &self.session else {
            return Ok(None);
        };
        let connection = session.connection.lock();
        let mut connection = connection.unwrap_or_else(PoisonError::into_inner);
        Ok(connection.query_first(sql)?.flatten())
    }

    fn free(&mut self) -> Result<(), Failure> {
        let released = match self.name.as_str() {
            "" => Ok(None),
            name => self.ask(&format!("SELECT RELEASE_LOCK('{name}')")),
        };
        if let Some(session) = self.session.take() {
            let mut sessions = self.sessions.lock();
            // The thread holds nothing else: this one, and the one in the map.
            if Arc::strong_count(&session) == 2 {
                sessions.remove(&self.thread);
            }
        }
        self.name.clear();
        released.map(drop)
    }
}

impl Held for Hold {
    fn release(mut self: Box<Self>) -> Result<(), Failure> {
        self.free()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.free();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hold").field(&self.name).finish()
    }
}
