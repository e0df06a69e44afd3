//! The connection and the thread of a provider that listen for releases by other processes.
//!
//! Each provider subscribes to a channel of its own. A message makes a waiter attempt again; without
//! a message a waiter does so later.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};
use lockkeeper_remote::Backoff;
use parking_lot::Mutex;
use redis::{Value, cmd};

use crate::connection::Connector;
use crate::failure::parse;
use crate::keys::Keys;
use crate::scripts::CHANNEL;
use crate::store::Store;

/// The thread checks this often whether the store was dropped.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// A silent server is sent a PING after so long.
const PING_AFTER: Duration = Duration::from_secs(5);
/// The longest time to wait for a reply.
const REPLY_TIME: Duration = Duration::from_secs(2);
/// The first pause before it connects again, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    Listening,
    /// The thread reconnects with pauses, and no waiter waits for that.
    Down,
}

/// The waiters of this process, and whether messages reach them.
pub(crate) struct WakeListener {
    /// Part of the names of the channel and of the waiters.
    id: String,
    connector: Arc<Connector>,
    /// Dropped with the provider, which ends the thread.
    store: Weak<Store>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Unparker>>,
    state: Mutex<State>,
    /// Whether the last server that was asked is a replica, to which no release is published.
    at_replica: AtomicBool,
    /// How often the primary was found at another connection.
    moves: AtomicU64,
}

impl WakeListener {
    pub(crate) fn new(connector: Arc<Connector>, store: Weak<Store>) -> Arc<Self> {
        use std::hash::{BuildHasher, RandomState};
        // Keyed from the system's random numbers: unique over all processes of the server.
        let id = RandomState::new().hash_one(std::process::id());
        Arc::new(Self {
            id: format!("{id:016x}"),
            connector,
            store,
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            state: Mutex::new(State::Idle),
            at_replica: AtomicBool::new(false),
            moves: AtomicU64::new(0),
        })
    }

    pub(crate) fn channel(&self) -> String {
        format!("{CHANNEL}{}", self.id)
    }

    /// Returns the name of a waiter that is not registered.
    pub(crate) fn probe(&self) -> String {
        format!("{}.0", self.id)
    }

    /// Notes that a server is no primary any more: the one that the thread listens to may be none either.
    pub(crate) fn note_replica(&self) {
        self.at_replica.store(true, Ordering::Release);
    }

    /// Notes that a new connection leads to a primary, and has the thread reconnect if it was in doubt.
    pub(crate) fn note_primary(&self) {
        if self.at_replica.swap(false, Ordering::AcqRel) {
            self.moves.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether messages reach the waiters right now.
    pub(crate) fn is_listening(&self) -> bool {
        *self.state.lock() == State::Listening
    }

    /// Starts the thread. Returns true if it will wake all waiters as soon as it listens. Otherwise it
    /// listens already, or cannot for now.
    pub(crate) fn is_about_to_listen(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        if *state == State::Idle {
            let listener = Arc::clone(self);
            let started = thread::Builder::new()
                .name("lockkeeper-redis".to_owned())
                .spawn(move || listener.run());
            if started.is_err() {
                // The waiters attempt again by themselves, and the next one starts the thread.
                return false;
            }
            *state = State::Connecting;
        }
        *state == State::Connecting
    }

    /// Listens until the store is dropped.
    fn run(&self) {
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        while self.store.strong_count() > 0 {
            let began = Instant::now();
            let _ = self.session();
            *self.state.lock() = State::Down;
            if began.elapsed() > LONGEST_PAUSE {
                backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
            }
            thread::sleep(backoff.next_pause());
        }
    }

    /// Listens until the connection fails, or the primary is found elsewhere.
    fn session(&self) -> Option<()> {
        let moves = self.moves.load(Ordering::Acquire);
        let mut connection = self.connector.connect(Duration::MAX).ok()?;
        let mut subscribe = cmd("SUBSCRIBE");
        subscribe.arg(self.channel());
        connection.run(&subscribe, REPLY_TIME).ok()?;
        *self.state.lock() = State::Listening;
        // Earlier messages had no subscriber.
        self.waiting.lock().values().for_each(Unparker::unpark);
        connection.set_timeout(CHECK_EVERY).ok()?;
        let mut heard = Instant::now();
        let mut pinged: Option<Instant> = None;
        while self.store.strong_count() > 0 && self.moves.load(Ordering::Acquire) == moves {
            match connection.receive() {
                Ok(answer) => {
                    heard = Instant::now();
                    pinged = None;
                    if let Some(payload) = payload(answer) {
                        self.wake(&payload);
                    }
                }
                Err(error) if error.is_timeout() => match pinged {
                    Some(pinged) if pinged.elapsed() > REPLY_TIME => return None,
                    Some(_) => {}
                    // A connection that was cut without a notice stays silent.
                    None if heard.elapsed() > PING_AFTER => {
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

    /// Wakes the waiter of a message, which names it and the lock's key.
    fn wake(&self, payload: &str) {
        let Some((waiter, key)) = payload.split_once(' ') else {
            return;
        };
        let number = waiter.split_once('.');
        let number = number.and_then(|(_, number)| number.parse::<u64>().ok());
        if let Some(unparker) = number.and_then(|number| self.waiting.lock().get(&number).cloned())
        {
            unparker.unpark();
        } else if let Some(store) = self.store.upgrade() {
            // The waiter has gone, so the name that is reserved for it goes to the next one.
            store.leave(&Keys::beside(key.to_owned()), waiter);
        }
    }

    /// Registers a waiter.
    pub(crate) fn enter(self: &Arc<Self>) -> Waiter {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let waiter = Waiter {
            name: format!("{}.{number}", self.id),
            number,
            parker: Parker::new(),
            listener: Arc::clone(self),
        };
        let unparker = waiter.parker.unparker().clone();
        self.waiting.lock().insert(number, unparker);
        waiter
    }
}

/// Returns the payload of a message, or `None` for the reply to a PING.
fn payload(answer: Value) -> Option<String> {
    let (kind, _, payload): (String, String, String) = parse(answer).ok()?;
    (kind == "message").then_some(payload)
}

/// A waiter; the listening thread knows it until it is dropped.
pub(crate) struct Waiter {
    pub(crate) name: String,
    pub(crate) parker: Parker,
    number: u64,
    listener: Arc<WakeListener>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.listener.waiting.lock().remove(&self.number);
    }
}
