//! The connection and the thread of a node that listen. While callers wait, they listen for releases
//! by other processes. While there are leases, they listen for events that may end them.
//!
//! Each listener subscribes to its own channel, and to that of its namespace. After a message, a waiter
//! makes another attempt; without a message it does so later. After the end of the connection, a flush or
//! an unlock, the keepers verify their leases. If the listener does not notice these, the next renewal
//! does.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};
use lockkeeper_core::{LeaseVerifiers, Mode};
use lockkeeper_remote::Backoff;
use parking_lot::Mutex;
use redis::cmd;

use crate::connection::Connection;
use crate::topology::connector::Connector;
use crate::topology::subscription::{Message, ask_for_flush_notice, read, subscribe};
use crate::wire::keys::ended_channel;
use crate::wire::lease::code;
use crate::wire::scripts::WAKE_CHANNEL;

/// The time from the first grant until the thread listens. So a program that locks only for a
/// moment opens no second connection.
const AFTER_FIRST_GRANT: Duration = Duration::from_millis(50);
/// The thread checks this often whether the node was dropped, or the primary found elsewhere.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// The time after which a silent server gets a PING.
const PING_AFTER: Duration = Duration::from_secs(5);
/// The longest time to wait for a reply.
const REPLY_TIME: Duration = Duration::from_secs(2);
/// The first pause before it connects again, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum State {
    Idle,
    /// The thread connects after [`AFTER_FIRST_GRANT`], or when it is unparked.
    Delayed(Thread),
    Connecting,
    /// The socket ends the thread when it is shut down. Without it, the thread ends by itself after [`CHECK_EVERY`].
    Listening(Option<TcpStream>),
    /// The thread reconnects with pauses, which an unpark ends, and no waiter waits for that.
    Down(Thread),
}

type Leave = dyn Fn(&str, &str) + Send + Sync;

/// The waiters and keepers of a node, and whether messages reach them.
pub(crate) struct Listener {
    /// Part of the names of the channel and of the waiters.
    id: String,
    /// Where the unlocking of names of this namespace is published.
    pub(crate) ended_channel: String,
    connector: Arc<Connector>,
    /// Set when the node is dropped, which ends the thread.
    is_closed: AtomicBool,
    /// Removes a waiter that has gone from the queue of a key.
    leave: Box<Leave>,
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, Unparker>>,
    pub(crate) verifiers: Arc<LeaseVerifiers>,
    state: Mutex<State>,
    /// Whether the last server that was asked is a replica, to which no release is published.
    at_replica: AtomicBool,
    /// How often the primary was found at another connection.
    moves: AtomicU64,
}

impl Listener {
    pub(crate) fn new(
        connector: Arc<Connector>,
        namespace: &str,
        verifiers: Arc<LeaseVerifiers>,
        leave: Box<Leave>,
    ) -> Arc<Self> {
        use std::hash::{BuildHasher, RandomState};
        // Keyed from the system's random numbers: unique over all processes of the server.
        let id = RandomState::new().hash_one(std::process::id());
        Arc::new(Self {
            id: format!("{id:016x}"),
            ended_channel: ended_channel(namespace),
            connector,
            is_closed: AtomicBool::new(false),
            leave,
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
            verifiers,
            state: Mutex::new(State::Idle),
            at_replica: AtomicBool::new(false),
            moves: AtomicU64::new(0),
        })
    }

    /// Returns the channels of waiters and of leases.
    pub(crate) fn channels(&self) -> [String; 2] {
        [
            format!("{WAKE_CHANNEL}{}", self.id),
            self.ended_channel.clone(),
        ]
    }

    /// Returns the name of a waiter that is not registered.
    pub(crate) fn probe(&self) -> String {
        format!("{}.0", self.id)
    }

    /// Notes that a server is no primary any more: the one that the thread listens to may be none either.
    pub(crate) fn note_replica(&self) {
        self.at_replica.store(true, Ordering::Release);
    }

    /// Notes that a new connection leads to a primary, and makes the thread reconnect if it was in doubt.
    pub(crate) fn note_primary(&self) {
        if self.at_replica.swap(false, Ordering::AcqRel) {
            self.moves.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether messages reach the waiters right now.
    pub(crate) fn is_listening(&self) -> bool {
        matches!(*self.state.lock(), State::Listening(_))
    }

    /// Starts the thread after a keeper's first grant.
    pub(crate) fn note_grant(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if matches!(*state, State::Idle)
            && !self.verifiers.is_empty()
            && let Some(thread) = self.start(AFTER_FIRST_GRANT)
        {
            *state = State::Delayed(thread);
        }
    }

    /// Starts the thread for a waiter. Returns true if it will wake all waiters as soon as it listens.
    /// Otherwise it listens already, or cannot for now.
    pub(crate) fn is_about_to_listen(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        match &*state {
            State::Idle if self.start(Duration::ZERO).is_some() => *state = State::Connecting,
            State::Delayed(thread) => {
                thread.unpark();
                *state = State::Connecting;
            }
            _ => {}
        }
        matches!(*state, State::Connecting)
    }

    /// Starts the thread, which listens after `delay`. `None` if the system has no thread: waiters attempt
    /// again by themselves, leases are renewed in time, and the next caller starts it.
    fn start(self: &Arc<Self>, delay: Duration) -> Option<Thread> {
        let listener = Arc::clone(self);
        let has_ended = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&has_ended);
        let started = named_thread().spawn(move || {
            thread::park_timeout(delay);
            listener.run();
            ends.store(true, Ordering::Release);
        });
        if started.is_ok() && self.connector.sentinels().is_some() {
            let listener = Arc::clone(self);
            // Where the system has no thread, connections that break lead to the new primary.
            let _ = named_thread().spawn(move || {
                thread::park_timeout(delay);
                listener.follow(&has_ended);
            });
        }
        Some(started.ok()?.thread().clone())
    }

    /// Ends the thread soon, for a node that is dropped. A thread that is connecting notices by itself.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        match &*self.state.lock() {
            State::Delayed(thread) | State::Down(thread) => thread.unpark(),
            State::Listening(Some(socket)) => {
                // It fails where the server has closed it already.
                let _ = socket.shutdown(Shutdown::Both);
            }
            State::Idle | State::Connecting | State::Listening(None) => {}
        }
    }

    /// Returns whether there is anything to listen for.
    fn is_used(&self) -> bool {
        let is_closed = self.is_closed.load(Ordering::Acquire);
        !is_closed && (!self.verifiers.is_empty() || !self.waiting.lock().is_empty())
    }

    /// Follows the sentinels, if there are any, until the listening has ended.
    fn follow(&self, has_ended: &AtomicBool) {
        if let Some(sentinels) = self.connector.sentinels() {
            let is_over = || has_ended.load(Ordering::Acquire);
            sentinels.follow(is_over, || self.verifiers.verify_all());
        }
    }

    /// Listens until the node is dropped, or its keepers have ended.
    fn run(&self) {
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        *self.state.lock() = State::Connecting;
        while !self.rests() {
            let began = Instant::now();
            let moves = self.moves.load(Ordering::Acquire);
            if let Some((mut connection, socket)) = self.connect() {
                // Earlier messages had no subscriber.
                self.verifiers.verify_all();
                *self.state.lock() = State::Listening(socket);
                self.waiting.lock().values().for_each(Unparker::unpark);
                let _ = self.listen(&mut connection, moves);
                // The server may have gone, or have been replaced.
                self.verifiers.verify_all();
            }
            *self.state.lock() = State::Down(thread::current());
            if began.elapsed() > LONGEST_PAUSE {
                backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
            }
            thread::park_timeout(backoff.next_pause());
        }
    }

    /// Ends the listening if there is nothing to listen for: the next grant or waiter starts another
    /// thread.
    fn rests(&self) -> bool {
        // Locked, so that a waiter that comes now is either seen or starts the thread.
        let mut state = self.state.lock();
        let rests = !self.is_used();
        if rests {
            *state = State::Idle;
        }
        rests
    }

    fn connect(&self) -> Option<(Connection, Option<TcpStream>)> {
        let mut connection = self.connector.connect(Duration::MAX).ok()?;
        // Without the notice, the next renewal notices a flush.
        let _ = ask_for_flush_notice(&mut connection, REPLY_TIME).ok()?;
        subscribe(&mut connection, &self.channels(), REPLY_TIME).ok()?;
        let socket = connection.socket().map(TcpStream::try_clone);
        let socket = socket.transpose().ok()?;
        Some((connection, socket))
    }

    /// Listens until the connection fails, the primary is found elsewhere, or nothing is to be heard.
    fn listen(&self, connection: &mut Connection, moves: u64) -> Option<()> {
        let mut heard = Instant::now();
        let mut pinged: Option<Instant> = None;
        let has_moved = |connection: &Connection| {
            self.moves.load(Ordering::Acquire) != moves || !connection.is_current()
        };
        while self.is_used() && !has_moved(connection) {
            match connection.next_message(CHECK_EVERY) {
                Ok(Some(came)) => {
                    heard = Instant::now();
                    pinged = None;
                    match read(came, &self.ended_channel) {
                        Some(Message::Wake(waiter)) => self.wake(&waiter),
                        Some(Message::LeasesEnded) => self.verifiers.verify_all(),
                        None => {}
                    }
                }
                Ok(None) => match pinged {
                    Some(pinged) if pinged.elapsed() > REPLY_TIME => return None,
                    Some(_) => {}
                    // A connection that was cut without a notice stays silent.
                    None if heard.elapsed() > PING_AFTER => {
                        // Not PING: a connection of the application's skips replies after a time-out, but no message.
                        let again = cmd("SUBSCRIBE").arg(&self.ended_channel).clone();
                        connection.send(&again, REPLY_TIME).ok()?;
                        pinged = Some(Instant::now());
                    }
                    None => {}
                },
                Err(_) => return None,
            }
        }
        Some(())
    }

    /// Wakes the waiter of a message, which names it and the lock's key. With a `?` behind the name, it is only removed if
    /// it has gone.
    fn wake(&self, payload: &str) {
        let Some((name, key)) = payload.split_once(' ') else {
            return;
        };
        let waiter = name.trim_end_matches('?');
        let number = waiter.split('.').nth(1);
        let number = number.and_then(|number| number.parse::<u64>().ok());
        if let Some(unparker) = number.and_then(|number| self.waiting.lock().get(&number).cloned())
        {
            if waiter == name {
                unparker.unpark();
            }
        } else {
            // The waiter has gone, so the name that is reserved for it goes to the next one.
            (self.leave)(key, waiter);
        }
    }

    /// Registers a waiter for a name in this mode.
    pub(crate) fn enter(self: &Arc<Self>, mode: Mode) -> Waiter {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let waiter = Waiter {
            name: format!("{}.{number}.{}", self.id, code(mode)),
            number,
            parker: Parker::new(),
            listener: Arc::clone(self),
        };
        let unparker = waiter.parker.unparker().clone();
        self.waiting.lock().insert(number, unparker);
        waiter
    }
}

fn named_thread() -> thread::Builder {
    thread::Builder::new().name("lockkeeper-redis".to_owned())
}

/// A waiter; the listening thread knows it until it is dropped.
pub(crate) struct Waiter {
    pub(crate) name: String,
    pub(crate) parker: Parker,
    number: u64,
    listener: Arc<Listener>,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.listener.waiting.lock().remove(&self.number);
    }
}
