//! The connection and the thread of a provider that watch for events that may end leases. While requests wait, they
//! also watch for deletions of keys in the namespace.
//!
//! A watch cannot be added to a running stream, so the thread opens another stream for the first waiter. When the
//! watches are confirmed, it reads the state of the leases, so no event in between is missed. Requests that checked
//! for their turn earlier check again. Without a notification, a waiter checks later.
//!
//! When Go's HTTP/1.1 server replies, it discards the unread part of the request's body: of 200 streams with six
//! watches, 19 lacked some. So a stream has at most two short watches, and is opened again unless both are
//! confirmed. All watches begin at the present, since etcd serves a watch of the past only every 100 ms.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};
use lockkeeper_core::LeaseVerifiers;
use lockkeeper_remote::Backoff;
use parking_lot::Mutex;
use serde_json::Value;

use super::queue::Ahead;
use super::waiters::{Signal, Waiters};
use crate::connection::Watch;
use crate::connection::client::Client;
use crate::wire::keys::{CommonKeys, KeyRange};
use crate::wire::{decoded, number, revision, watch, watch_deletions};

/// The time from the first grant until the provider listens. So a program that locks only for a
/// moment opens no second connection.
const AFTER_FIRST_GRANT: Duration = Duration::from_millis(50);
/// The longest time until the watches of a stream are confirmed, and for a read.
const REPLY_TIME: Duration = Duration::from_secs(2);
/// The first pause before it connects again, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The waiters and keepers of a provider, and the stream that notifies them.
pub(crate) struct Listener {
    client: Arc<Client>,
    keys: CommonKeys,
    pub(crate) verifiers: LeaseVerifiers,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Whether the provider was dropped, which ends the thread.
    is_closed: bool,
    thread: Option<Thread>,
    /// Ends the stream when it is shut down.
    socket: Option<TcpStream>,
    /// Whether the stream also watches the deletions that waiters wait for.
    is_for_waiters: bool,
    waiters: Waiters,
}

/// The events that show that leases ended early.
#[derive(Default, PartialEq, Eq)]
struct Endings {
    /// When `unlock` took a lock away; 0 if it never did.
    unlocked: i64,
    /// When the base of the epochs was created, which a wipe deletes; 0 if it is missing.
    base: i64,
}

impl Listener {
    pub(crate) fn new(client: Arc<Client>, keys: CommonKeys) -> Arc<Self> {
        Arc::new(Self {
            client,
            keys,
            verifiers: LeaseVerifiers::default(),
            state: Mutex::default(),
        })
    }

    /// Starts the thread after a keeper's first grant.
    pub(crate) fn note_grant(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if state.thread.is_none() && !self.verifiers.is_empty() {
            state.thread = self.start(AFTER_FIRST_GRANT);
        }
    }

    /// Registers a waiter for the name with these keys, until the result is dropped. The waiter waits for the keys
    /// that were ahead at `revision`.
    pub(crate) fn enter(self: &Arc<Self>, keys: KeyRange, ahead: Ahead, revision: i64) -> Waiter {
        let parker = Parker::new();
        let signal = Signal {
            is_due: Arc::default(),
            unparker: parker.unparker().clone(),
        };
        let mut state = self.state.lock();
        let id = state.waiters.enter(&keys, ahead, revision, signal.clone());
        if let Some(socket) = &state.socket
            && !state.is_for_waiters
        {
            // It fails if the server has closed the socket already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        match &state.thread {
            // It may pause before it connects again.
            Some(thread) if state.socket.is_none() => thread.unpark(),
            Some(_) => {}
            // Without a thread, the waiter polls.
            None => state.thread = self.start(Duration::ZERO),
        }
        drop(state);
        Waiter {
            id,
            keys,
            signal,
            parker,
            listener: Arc::clone(self),
        }
    }

    fn start(self: &Arc<Self>, delay: Duration) -> Option<Thread> {
        let listener = Arc::clone(self);
        let started = thread::Builder::new()
            .name("lockkeeper-etcd".to_owned())
            .spawn(move || {
                thread::park_timeout(delay);
                listener.run();
            });
        Some(started.ok()?.thread().clone())
    }

    /// Ends the thread soon, for a provider that is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        if let Some(socket) = &state.socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
        if let Some(thread) = &state.thread {
            thread.unpark();
        }
    }

    /// Returns whether there is nothing to listen for. Then the thread ends, and the next grant or
    /// waiter starts another.
    fn rests(&self) -> bool {
        // Under the mutex, a waiter that comes now is either seen or starts the thread.
        let mut state = self.state.lock();
        let is_idle = self.verifiers.is_empty() && state.waiters.is_unused();
        let is_used = !state.is_closed && !is_idle;
        if !is_used {
            state.thread = None;
        }
        !is_used
    }

    fn run(&self) {
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        let mut known = None;
        while !self.rests() {
            let began = Instant::now();
            // Whatever ends a stream, another one follows.
            let _ = self.listen(&mut known);
            let mut state = self.state.lock();
            let is_replaced = state.socket.take().is_some()
                && match state.is_for_waiters {
                    true => state.waiters.is_idle(),
                    false => !state.waiters.is_unused(),
                };
            state.waiters.end();
            drop(state);
            if is_replaced {
                continue;
            }
            // The member may have gone, or the cluster have been replaced.
            known = None;
            self.verifiers.verify_all();
            if began.elapsed() > LONGEST_PAUSE {
                backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
            }
            thread::park_timeout(backoff.next_pause());
        }
    }

    /// Opens a stream, and listens until it ends or is not needed.
    ///
    /// The watch for waiters is the last one. Before its confirmation, the server reports no deletion.
    fn listen(&self, known: &mut Option<Endings>) -> Option<()> {
        let mut stream = Watch::new(self.client.connector.connect(Duration::MAX).ok()?);
        // Without it, neither a waiter nor a provider that is dropped could end the stream.
        let socket = stream.socket().try_clone().ok()?;
        let mut state = self.state.lock();
        if state.is_closed {
            // It was closed before there was a socket to shut down.
            return None;
        }
        state.socket = Some(socket);
        state.is_for_waiters = !state.waiters.is_unused();
        let is_for_waiters = state.is_for_waiters;
        drop(state);
        let mut requests = watch(&self.keys.all());
        let mut unconfirmed = 1;
        if is_for_waiters {
            requests += &watch_deletions(&self.keys.namespace());
            unconfirmed += 1;
        }
        stream.begin(&requests, REPLY_TIME).ok()?;
        loop {
            let limit = (unconfirmed > 0).then_some(REPLY_TIME);
            let message = stream.next(limit).ok()??;
            let result = message.get("result")?;
            if result.get("canceled").is_some() {
                return None;
            }
            if result.get("created").is_some() {
                unconfirmed -= 1;
                if unconfirmed == 0 {
                    if is_for_waiters {
                        let from = revision(result);
                        self.state.lock().waiters.begin(from);
                    }
                    self.compare(known)?;
                }
                continue;
            }
            let events = result.get("events").and_then(Value::as_array);
            self.tell(events.map_or(&[], Vec::as_slice), known);
            if is_for_waiters && self.state.lock().waiters.is_idle() {
                return Some(());
            }
        }
    }

    /// Reads the events that ended leases so far. Verifies all leases unless the events are `known`.
    fn compare(&self, known: &mut Option<Endings>) -> Option<()> {
        let until = self.client.clock.now() + REPLY_TIME;
        let found = self.client.read(&self.keys.all(), until, None).ok()?;
        let seen = |key: &str| found.all.iter().find(|it| it.key == key).map(|it| it.seen);
        let endings = Some(Endings {
            unlocked: seen(&self.keys.ended).map_or(0, |it| it.modified),
            base: seen(&self.keys.base).map_or(0, |it| it.created),
        });
        if *known != endings {
            self.verifiers.verify_all();
            *known = endings;
        }
        Some(())
    }

    /// Notifies waiters of the deletions that they wait for, and keepers of events that end leases.
    fn tell(&self, events: &[Value], known: &mut Option<Endings>) {
        let endings = known.get_or_insert_default();
        for event in events {
            let is_deletion = event.get("type").and_then(Value::as_str) == Some("DELETE");
            let Some((key, at)) = changed(event) else {
                continue;
            };
            if key == self.keys.ended && !is_deletion {
                endings.unlocked = at;
            } else if key == self.keys.base && is_deletion {
                endings.base = 0;
            } else {
                if is_deletion {
                    self.state.lock().waiters.deleted(key, at);
                }
                continue;
            }
            self.verifiers.verify_all();
        }
    }
}

/// Returns the key of a write or a deletion, and the revision.
fn changed(event: &Value) -> Option<(String, i64)> {
    let key = event.get("kv")?;
    Some((decoded(key.get("key")?), number(key.get("mod_revision")?)))
}

/// A waiter. The listening thread knows it until it is dropped.
pub(crate) struct Waiter {
    id: u64,
    keys: KeyRange,
    signal: Signal,
    parker: Parker,
    listener: Arc<Listener>,
}

impl Waiter {
    /// Returns whether the keys that it waits for are deleted.
    pub(crate) fn is_due(&self) -> bool {
        self.signal.is_due.load(Ordering::SeqCst)
    }

    pub(crate) fn unparker(&self) -> Unparker {
        self.parker.unparker().clone()
    }

    pub(crate) fn park(&self, limit: Duration) {
        self.parker.park_timeout(limit);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.listener
            .state
            .lock()
            .waiters
            .leave(&self.keys, self.id);
    }
}
