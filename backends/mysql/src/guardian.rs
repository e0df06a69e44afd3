//! The guardian of a provider: a session that says for all its shared leases that the namespace has readers.
//!
//! A writer would have to look up every slot of a name, which takes longer than the lock itself. So it looks at one name
//! of the namespace, the flag, and looks for readers only if that is in use. Every provider that reads has a guardian,
//! which holds the flag or waits for it in the server. When the session that holds the flag ends, the server passes it to
//! the next that waits before any look can find it free. So it is in use as long as one guardian lives.
//!
//! When a guardian's session ends, a writer may be granted what the provider's readers have. So their leases are lost at
//! once then, as with the end of their own sessions.

use std::fmt;
use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{AcquireRequest, Error};
use lockkeeper_remote::sessions::Sessions;
use lockkeeper_remote::{Failure, WatchedSocket, nothing_granted, unavailable};
use parking_lot::{Condvar, Mutex};

use crate::connection::{Connection, number};
use crate::connector::Connector;
use crate::names::EncodedName;
use crate::readers::Readers;
use crate::statements::{self, SessionId};
use crate::wire::Wire;

/// How long the server lets a guardian wait for the flag, and then be idle: a year, the longest that it can.
const YEAR: u64 = 31_536_000;

/// The text of the error of a guardian that does not stand in time.
const NOT_STARTED: &str =
    "the session that shared locks need could not be started in time; try again";

/// The shortest time that a request waits for a start: some round trips of a busy machine.
const GRACE: Duration = Duration::from_millis(500);

/// The pause between two questions whether a guardian waits in the server.
const ASK_EVERY: Duration = Duration::from_millis(1);

/// The flag of a namespace, as its connections know it.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) name: EncodedName,
    /// Whether it was in use when it was looked at last.
    is_used: AtomicBool,
}

impl Flag {
    pub(crate) fn new(namespace: &str) -> Self {
        Self {
            name: EncodedName::flag(namespace),
            is_used: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    pub(crate) fn note(&self, is_used: bool) {
        self.is_used.store(is_used, Ordering::Relaxed);
    }
}

pub(crate) struct Guardian {
    connector: Arc<Connector>,
    sessions: Arc<Sessions<Connection>>,
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Off,
    /// A thread starts it.
    Starting,
    /// The last start failed.
    Failed(Error),
    Standing(Post),
}

/// A session that holds the flag or waits for it. Dropping it ends the session.
struct Post {
    id: SessionId,
    wire: Arc<Wire>,
    session: Arc<Mutex<Progress>>,
    watched: Option<WatchedSocket>,
}

/// How far a guardian's session has come.
enum Progress {
    /// A thread waits for the server's reply.
    Waits,
    /// It holds the flag.
    Holds(#[expect(dead_code, reason = "it holds the flag while it is open")] Box<Connection>),
    Failed,
}

impl State {
    /// Returns the session that stands guard, unless it has ended.
    fn standing(&self) -> Option<SessionId> {
        match self {
            Self::Standing(post) if !post.has_ended() => Some(post.id),
            _ => None,
        }
    }
}

impl Post {
    fn has_ended(&self) -> bool {
        let has_ended = self.watched.as_ref().is_some_and(WatchedSocket::has_ended);
        has_ended || matches!(&*self.session.lock(), Progress::Failed)
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        // A thread may wait for a reply on it.
        self.wire.close();
    }
}

impl fmt::Debug for Guardian {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guardian").finish_non_exhaustive()
    }
}

impl Guardian {
    pub(crate) fn new(connector: &Arc<Connector>, sessions: &Arc<Sessions<Connection>>) -> Self {
        Self {
            connector: Arc::clone(connector),
            sessions: Arc::clone(sessions),
            state: Mutex::new(State::Off),
            changed: Condvar::new(),
        }
    }

    /// Returns the session that stands guard, and starts it if there is none. Waits for the start within `limit`, and the
    /// request's deadline if it has one. Returns `None` if the request is cancelled.
    pub(crate) fn stand(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        limit: Duration,
    ) -> Result<Option<SessionId>, Error> {
        if let Some(session) = self.state.lock().standing() {
            return Ok(Some(session));
        }
        let until = match request.deadline() {
            None => request.now() + limit,
            Some(deadline) => deadline.max(request.now() + GRACE),
        };
        let guardian = Arc::clone(self);
        let wake = move || {
            let _state = guardian.state.lock();
            guardian.changed.notify_all();
        };
        let _wake = request.cancel().map(|cancel| cancel.on_cancel(wake));
        let mut state = self.state.lock();
        if matches!(&*state, State::Off | State::Failed(_)) {
            self.start_aside(limit)?;
            *state = State::Starting;
        }
        loop {
            if let Some(session) = state.standing() {
                return Ok(Some(session));
            }
            let left = until.saturating_since(request.now());
            match &*state {
                State::Failed(error) => return Err(error.clone()),
                State::Off | State::Standing(_) => return Err(ended()),
                State::Starting if request.is_cancelled() => return Ok(None),
                State::Starting if left.is_zero() => return Err(unavailable(NOT_STARTED)),
                State::Starting => {}
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Starts the session within `limit`, on a thread that no caller's deadline or cancel ends: others wait for it, too.
    fn start_aside(self: &Arc<Self>, limit: Duration) -> Result<(), Error> {
        let guardian = Arc::clone(self);
        let start = move || {
            let started = guardian.start(Instant::now() + limit);
            guardian.finish_start(started.map_err(nothing_granted));
        };
        spawn(start)
    }

    fn finish_start(&self, started: Result<Post, Error>) {
        // `end` is called once, and does nothing before the session stands. So the session is looked at under the lock.
        let mut state = self.state.lock();
        *state = match started {
            Ok(post) if post.has_ended() => State::Failed(unavailable(NOT_STARTED)),
            Ok(post) => State::Standing(post),
            Err(error) => State::Failed(error),
        };
        self.changed.notify_all();
    }

    /// Returns whether the session still stands guard.
    pub(crate) fn stands(&self, id: SessionId) -> bool {
        self.state.lock().standing() == Some(id)
    }

    /// Records that a session has ended. If it stood guard, all shared leases are lost.
    fn end(&self, id: SessionId) {
        let mut state = self.state.lock();
        if !matches!(&*state, State::Standing(post) if post.id == id) {
            return;
        }
        let ended = replace(&mut *state, State::Off);
        drop(state);
        drop(ended);
        self.sessions.end_leases(Readers::is_slot);
    }

    /// Has a new session hold the flag, or wait for it in the server.
    fn start(self: &Arc<Self>, until: Instant) -> Result<Post, Failure> {
        let mut connection = self.connect(until)?;
        let id = connection.id();
        // Not by `set_idle_seconds`: nothing that this session may hold makes a name busy.
        connection.run(&connection.dialect.set_idle(YEAR))?;
        let guardian = Arc::downgrade(self);
        let on_end = move || {
            if let Some(guardian) = guardian.upgrade() {
                guardian.end(id);
            }
        };
        let watched = connection.watch(on_end)?;
        let wire = Arc::clone(&connection.wire);
        let flag = &self.connector.shared.flag;
        let is_free = number(&connection.query(&statements::take(&flag.name, 0))?, 0) == Some(1);
        flag.note(true);
        let session = Arc::new(Mutex::new(Progress::Waits));
        let post = Post {
            id,
            wire,
            session: Arc::clone(&session),
            watched,
        };
        if is_free {
            *session.lock() = Progress::Holds(Box::new(connection));
        } else {
            self.wait_for_flag(connection, session)?;
            self.confirm_wait(&post, until)?;
        }
        Ok(post)
    }

    fn connect(&self, until: Instant) -> Result<Connection, Failure> {
        let left = || until.saturating_duration_since(Instant::now());
        let connection = self.connector.connect(left());
        let mut connection = connection.map_err(Failure::NotSent)?;
        connection.limit = left();
        Ok(connection)
    }

    /// Starts a thread on which the session waits for the flag.
    fn wait_for_flag(
        self: &Arc<Self>,
        mut connection: Connection,
        session: Arc<Mutex<Progress>>,
    ) -> Result<(), Failure> {
        let (guardian, id) = (Arc::downgrade(self), connection.id());
        let take = statements::take(&self.connector.shared.flag.name, YEAR);
        connection.limit = Duration::from_secs(YEAR);
        let wait = move || match connection.query(&take) {
            Ok(row) if number(&row, 0) == Some(1) => {
                *session.lock() = Progress::Holds(Box::new(connection));
            }
            _ => {
                *session.lock() = Progress::Failed;
                if let Some(guardian) = guardian.upgrade() {
                    guardian.end(id);
                }
            }
        };
        spawn(wait).map_err(Failure::NotSent)
    }

    /// Returns once the server has the session in its queue for the flag: until then, the flag would be free if its
    /// holder ended.
    fn confirm_wait(&self, post: &Post, until: Instant) -> Result<(), Failure> {
        let mut connection = self.connect(until)?;
        let waits = statements::holds_or_waits(&self.connector.shared.flag.name, post.id);
        while number(&connection.query(&waits)?, 0) == Some(0) {
            if post.has_ended() || Instant::now() >= until {
                return Err(Failure::NotSent(unavailable(NOT_STARTED)));
            }
            // Nothing tells when a session has begun to wait.
            thread::sleep(ASK_EVERY);
        }
        Ok(())
    }
}

/// Starts a thread of the guardian.
fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name("lockkeeper-mysql-guard".to_owned());
    thread.spawn(run).map(drop).map_err(|error| {
        let text = "a thread for the session that shared locks need cannot be started; is the limit of threads reached?";
        unavailable(text).with_source(error)
    })
}

/// Returns the error of a shared lock that was granted while the guardian's session ended.
pub(crate) fn ended() -> Error {
    unavailable("the server has ended the session that shared locks need; try again")
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use lockkeeper_core::SystemClock;
    use lockkeeper_testkit::until;

    use super::*;
    use crate::MySqlOptions;
    use crate::statements::Run;

    fn post(session: &Arc<Mutex<Progress>>) -> Post {
        let (id, run) = (7, Run::default());
        Post {
            id: SessionId { id, run },
            wire: Arc::default(),
            session: Arc::clone(session),
            watched: None,
        }
    }

    fn guardian() -> Guardian {
        let clock = Arc::new(SystemClock);
        let sessions = Sessions::new(clock.clone()).unwrap();
        let options = MySqlOptions::tcp("here", 1);
        let connector = Connector::new(&options, "shop", clock, &sessions);
        Guardian::new(&Arc::new(connector), &sessions)
    }

    #[test]
    fn session_that_ends_at_the_end_of_its_start_does_not_stand() {
        let (guardian, session) = (guardian(), Arc::new(Mutex::new(Progress::Waits)));
        let post = post(&session);
        let id = post.id;
        *guardian.state.lock() = State::Starting;
        let mut progress = session.lock();
        thread::scope(|scope| {
            scope.spawn(|| guardian.finish_start(Ok(post)));
            until("the start looks at the session", || {
                guardian.state.is_locked()
            });
            scope.spawn(|| guardian.end(id));
            *progress = Progress::Failed;
            drop(progress);
        });
        assert!(matches!(&*guardian.state.lock(), State::Failed(_)));
    }

    #[test]
    fn session_that_has_ended_does_not_stand() {
        let (guardian, session) = (guardian(), Arc::new(Mutex::new(Progress::Waits)));
        let post = post(&session);
        let id = post.id;
        guardian.finish_start(Ok(post));
        assert!(guardian.stands(id));
        // `end` was not called yet.
        *session.lock() = Progress::Failed;
        assert!(!guardian.stands(id));
    }
}
