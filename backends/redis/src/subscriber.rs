//! How a release elsewhere wakes a waiter here: one connection a provider, subscribed to a channel
//! of its own, and one thread that listens there.
//!
//! A message says "look". A waiter also looks without one, only later.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_remote::Backoff;
use redis::{Value, cmd};

use crate::connection::Connector;
use crate::scripts::CHANNEL;
use crate::store::{Store, told};

/// The thread looks whether it is to end, and the server whether it is there, this often.
const BREATH: Duration = Duration::from_millis(500);
const PING_EVERY: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(2);
/// The first pause before it connects again, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    Listening,
    /// It tries again and again. Nobody waits for that.
    Down,
}

/// Who waits here, and whether wakes come through.
pub(crate) struct Hub {
    /// In channel and waiters' names.
    id: String,
    connector: Arc<Connector>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Arc<Bell>>>,
    state: Mutex<State>,
    changed: Condvar,
    stopped: AtomicBool,
    /// Whether the last server that was asked is a replica, which is told of no release.
    at_replica: AtomicBool,
    /// How often the primary was found elsewhere.
    moves: AtomicU64,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    pub(crate) fn new(connector: Arc<Connector>) -> Arc<Self> {
        use std::hash::{BuildHasher, RandomState};
        // Keyed from the system's random numbers: unique over all processes of the server.
        let id = RandomState::new().hash_one(std::process::id());
        Arc::new(Self {
            id: format!("{id:016x}"),
            connector,
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            state: Mutex::new(State::Idle),
            changed: Condvar::new(),
            stopped: AtomicBool::new(false),
            at_replica: AtomicBool::new(false),
            moves: AtomicU64::new(0),
        })
    }

    pub(crate) fn channel(&self) -> String {
        format!("{CHANNEL}{}", self.id)
    }

    /// A name for a waiter that is not registered.
    pub(crate) fn probe(&self) -> String {
        format!("{}.0", self.id)
    }

    /// Ends the thread, soon.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        let _state = lock(&self.state);
        self.changed.notify_all();
    }

    /// The server is no primary any more, so the one that the thread listens to may be none either.
    pub(crate) fn met_replica(&self) {
        self.at_replica.store(true, Ordering::Release);
    }

    /// A new connection leads to a primary: the thread, too, is to connect anew if it was in doubt.
    pub(crate) fn met_primary(&self) {
        if self.at_replica.swap(false, Ordering::AcqRel) {
            self.moves.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether wakes come through right now.
    pub(crate) fn is_listening(&self) -> bool {
        *lock(&self.state) == State::Listening
    }

    /// Has the thread listen. Whether all who wait will be rung when it does: else it does already,
    /// or cannot for now.
    pub(crate) fn is_about_to_listen(self: &Arc<Self>, store: &Arc<Store>) -> bool {
        let mut state = lock(&self.state);
        if *state == State::Idle {
            let (hub, store) = (Arc::clone(self), Arc::downgrade(store));
            let started = thread::Builder::new()
                .name("lockkeeper-redis".to_owned())
                .spawn(move || hub.work(&store));
            if started.is_err() {
                // The waiters look by themselves; the next one tries again to have it started.
                return false;
            }
            *state = State::Connecting;
        }
        *state == State::Connecting
    }

    fn set(&self, state: State) {
        *lock(&self.state) = state;
        self.changed.notify_all();
    }

    fn work(&self, store: &Weak<Store>) {
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        while !self.stopped.load(Ordering::Acquire) {
            let began = Instant::now();
            let _ = self.session(store);
            self.set(State::Down);
            if began.elapsed() > LONGEST_PAUSE {
                backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
            }
            let pause = backoff.next_pause();
            let stopped = |_: &mut State| !self.stopped.load(Ordering::Acquire);
            drop(
                self.changed
                    .wait_timeout_while(lock(&self.state), pause, stopped),
            );
        }
    }

    /// Listens until the connection fails, or the primary is found elsewhere.
    fn session(&self, store: &Weak<Store>) -> Option<()> {
        let moves = self.moves.load(Ordering::Acquire);
        let mut connection = self.connector.connect(Duration::MAX).ok()?;
        let mut subscribe = cmd("SUBSCRIBE");
        subscribe.arg(self.channel());
        let subscribed = connection.ask(&subscribe.get_packed_command(), ANSWER);
        subscribed.and_then(told).ok()?;
        self.set(State::Listening);
        // What was published until now went nowhere.
        self.ring_all();
        connection.set_timeout(BREATH).ok()?;
        let mut heard = Instant::now();
        let mut pinged: Option<Instant> = None;
        while !self.stopped.load(Ordering::Acquire) && self.moves.load(Ordering::Acquire) == moves {
            match connection.receive() {
                Ok(answer) => {
                    heard = Instant::now();
                    pinged = None;
                    if let Some(payload) = payload(&answer) {
                        self.wake(payload, store);
                    }
                }
                Err(error) if error.is_timeout() => match pinged {
                    Some(pinged) if pinged.elapsed() > ANSWER => return None,
                    Some(_) => {}
                    // A connection that was cut without a word stays silent for ever.
                    None if heard.elapsed() > PING_EVERY => {
                        connection.send(&cmd("PING")).ok()?;
                        pinged = Some(Instant::now());
                    }
                    None => {}
                },
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// A message names a waiter and the lock's key.
    fn wake(&self, payload: &str, store: &Weak<Store>) {
        let Some((waiter, key)) = payload.split_once(' ') else {
            return;
        };
        let number = waiter
            .split_once('.')
            .and_then(|(_, number)| number.parse().ok());
        let bell = number.and_then(|number: u64| lock(&self.waiting).get(&number).cloned());
        match (bell, store.upgrade()) {
            (Some(bell), _) => bell.ring(),
            // It does not wait any more: what is kept for it is the next one's.
            (None, Some(store)) => store.leave(key, &format!("{key}:line"), waiter),
            (None, None) => {}
        }
    }

    fn ring_all(&self) {
        lock(&self.waiting).values().for_each(|bell| bell.ring());
    }

    /// Enters a waiter.
    pub(crate) fn enter(self: &Arc<Self>) -> Waiter {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let waiter = Waiter {
            name: format!("{}.{number}", self.id),
            number,
            bell: Arc::default(),
            hub: Arc::clone(self),
        };
        lock(&self.waiting).insert(number, Arc::clone(&waiter.bell));
        waiter
    }
}

/// Returns what was published. `None`: it is the answer to a PING.
fn payload(answer: &Value) -> Option<&str> {
    match answer {
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(kind), _, Value::BulkString(payload)] if kind == b"message" => {
                std::str::from_utf8(payload).ok()
            }
            _ => None,
        },
        _ => None,
    }
}

/// Somebody who waits; known to the listening thread until dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) name: String,
    pub(crate) bell: Arc<Bell>,
    number: u64,
    hub: Arc<Hub>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        lock(&self.hub.waiting).remove(&self.number);
    }
}

/// What a waiter sleeps on.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *lock(&self.rung) = true;
        self.changed.notify_one();
    }

    /// Forgets what rang before.
    pub(crate) fn drain(&self) {
        *lock(&self.rung) = false;
    }

    pub(crate) fn wait(&self, limit: Duration) {
        drop(
            self.changed
                .wait_timeout_while(lock(&self.rung), limit, |rung| !*rung),
        );
    }
}
