//! The connection and the thread of a provider that watch: keys whose deletion waiters wait for, and what may end
//! leases.
//!
//! A watch cannot be added to a stream that runs, so a waiter for another name has the thread open another one. Each watch
//! begins at the revision after the waiter's last look, so nothing is missed in between. Without a notification, a
//! waiter looks later.

use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use crossbeam_utils::sync::{Parker, Unparker};
use lockkeeper_core::LeaseVerifiers;
use lockkeeper_remote::Backoff;
use parking_lot::Mutex;
use serde_json::Value;

use crate::attempt::Queued;
use crate::connection::{Connection, Connector};
use crate::keys::{CommonKeys, KeyRange};
use crate::store::Store;
use crate::waiters::{Names, Signal};
use crate::wire::{decoded, number, revision, watch_deletions, watch_writes};

/// A provider listens this long after its first grant, so that a program that only locks for a moment
/// opens no second connection.
const AFTER_FIRST_GRANT: Duration = Duration::from_millis(50);
/// The longest time for the beginning of a reply.
const REPLY_TIME: Duration = Duration::from_secs(2);
/// The first pause before it connects again, and the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The waiters and keepers of a provider, and the stream that tells them.
pub(crate) struct Listener {
    connector: Arc<Connector>,
    keys: CommonKeys,
    /// Dropped with the provider, which ends the thread.
    store: Weak<Store>,
    pub(crate) verifiers: LeaseVerifiers,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    thread: Option<Thread>,
    /// Ends the stream when it is shut down.
    socket: Option<TcpStream>,
    names: Names,
    /// A name is to be watched that is not since the stream was asked for, or the other way round.
    has_changed: bool,
    /// The last revision of which the stream has told.
    seen: i64,
}

/// The watches of a stream.
struct Watches {
    /// The first keys of the names, by the numbers of their watches.
    names: Vec<Option<String>>,
    /// The largest revision after which one of them begins.
    seen: i64,
}

impl Listener {
    pub(crate) fn new(
        connector: Arc<Connector>,
        keys: CommonKeys,
        store: Weak<Store>,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector,
            keys,
            store,
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

    /// Registers a waiter for the name with these keys until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>, keys: KeyRange, queued: &Queued) -> Waiter {
        let parker = Parker::new();
        let signal = Signal {
            is_due: Arc::default(),
            unparker: parker.unparker().clone(),
        };
        let mut state = self.state.lock();
        let (id, is_new) = state.names.enter(&keys, queued, signal.clone());
        if is_new {
            state.has_changed = true;
            if let Some(socket) = &state.socket {
                // It fails where the server has closed it already.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
        match &state.thread {
            // It may pause before it connects again.
            Some(thread) if state.socket.is_none() => thread.unpark(),
            Some(_) => {}
            // Without a thread, the waiter looks for itself.
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

    /// Ends the thread soon, for a store that is dropped.
    pub(crate) fn close(&self) {
        let state = self.state.lock();
        if let Some(socket) = &state.socket {
            let _ = socket.shutdown(Shutdown::Both);
        }
        if let Some(thread) = &state.thread {
            thread.unpark();
        }
    }

    /// Ends the listening if there is nothing to listen for: the next grant or waiter starts another
    /// thread.
    fn rests(&self) -> bool {
        // Locked, so that a waiter that comes now is either seen or starts the thread.
        let mut state = self.state.lock();
        let is_used = self.store.strong_count() > 0
            && !(self.verifiers.is_empty() && state.names.is_unused());
        if !is_used {
            state.thread = None;
        }
        !is_used
    }

    fn run(&self) {
        let mut backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
        let mut may_have_missed = true;
        while !self.rests() {
            let began = Instant::now();
            if let Some((mut connection, watches)) = self.connect() {
                if may_have_missed {
                    self.verifiers.verify_all();
                }
                if self.is_current(&mut connection, &watches) {
                    self.listen(&mut connection, &watches);
                }
            }
            let mut state = self.state.lock();
            state.socket = None;
            may_have_missed = !state.has_changed;
            drop(state);
            if !may_have_missed {
                continue;
            }
            // The member may have gone, or the cluster have been replaced.
            self.verifiers.verify_all();
            if began.elapsed() > LONGEST_PAUSE {
                backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
            }
            thread::park_timeout(backoff.next_pause());
        }
    }

    /// Opens a stream with a watch for what ends leases, and one for each name.
    fn connect(&self) -> Option<(Connection, Watches)> {
        // Also if no connection is opened: a failure is to be followed by a pause.
        self.state.lock().has_changed = false;
        let mut connection = self.connector.connect(Duration::MAX).ok()?;
        let mut state = self.state.lock();
        state.socket = connection.socket().try_clone().ok();
        state.has_changed = false;
        if self.store.strong_count() == 0 {
            // It was closed before there was a socket to shut down.
            return None;
        }
        let from = state.seen + i64::from(state.seen > 0);
        let base = KeyRange::one(self.keys.base.as_str());
        let mut requests = vec![
            watch_writes(&self.keys.ended, from),
            watch_deletions(&base, from),
        ];
        let mut watches = Watches {
            names: vec![None, None],
            seen: state.seen,
        };
        for (keys, from) in state.names.in_use() {
            requests.push(watch_deletions(keys, from));
            watches.names.push(Some(keys.first.clone()));
            watches.seen = watches.seen.max(from - 1);
        }
        drop(state);
        let requests: String = requests.iter().map(Value::to_string).collect();
        connection.watch(&requests, REPLY_TIME).ok()?;
        Some((connection, watches))
    }

    /// Reads the first message of a stream, which tells the revision of the store. Returns whether the stream is of use:
    /// whether its watches do not begin after that revision.
    ///
    /// Revisions begin again in a cluster that was made anew or restored. A member may also be behind another one for a
    /// moment, and then the waiters look once more than they need.
    fn is_current(&self, connection: &mut Connection, watches: &Watches) -> bool {
        let Ok(Some(message)) = connection.next_message() else {
            return false;
        };
        let Some(result) = message.get("result") else {
            return false;
        };
        let mut state = self.state.lock();
        if revision(result) < watches.seen {
            state.names.clear();
        } else if result.get("canceled").is_none() {
            state.seen = revision(result);
            return true;
        }
        state.seen = 0;
        false
    }

    /// Listens until the stream ends, or has a watch that is of no use.
    fn listen(&self, connection: &mut Connection, watches: &Watches) {
        while let Ok(Some(message)) = connection.next_message() {
            let Some(result) = message.get("result") else {
                return;
            };
            let mut state = self.state.lock();
            state.seen = state.seen.max(revision(result));
            let watch = result.get("watch_id").map_or(0, number);
            let watch = usize::try_from(watch)
                .ok()
                .and_then(|at| watches.names.get(at));
            let is_cancelled = result.get("canceled").is_some();
            let events = result.get("events").and_then(Value::as_array);
            let events = events.map_or(&[][..], Vec::as_slice);
            match watch {
                // Its first revision may be compacted.
                Some(Some(name)) if is_cancelled => state.names.cancelled(name),
                Some(Some(name)) => {
                    let deletions: Vec<_> = events.iter().filter_map(deletion).collect();
                    if !state.names.deleted(name, &deletions) {
                        state.has_changed = true;
                        return;
                    }
                }
                _ if is_cancelled => {
                    state.seen = 0;
                    return;
                }
                _ if !events.is_empty() => {
                    drop(state);
                    self.verifiers.verify_all();
                }
                _ => {}
            }
        }
    }
}

/// Returns the key of a deletion, and the revision.
fn deletion(event: &Value) -> Option<(String, i64)> {
    let key = event.get("kv")?;
    Some((decoded(key.get("key")?), number(key.get("mod_revision")?)))
}

/// A waiter; the listening thread knows it until it is dropped.
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
        self.listener.state.lock().names.leave(&self.keys, self.id);
    }
}
