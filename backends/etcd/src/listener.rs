//! The connection and the thread of a provider that watch: keys whose deletion waiters wait for, and what may end
//! leases.
//!
//! A watch cannot be added to a stream that runs, so a waiter for another name has the thread open another one. The watch of
//! a name begins at the revision after the waiter's last look, so nothing is missed in between. Without a notification, a
//! waiter looks later. What may end leases is read before each stream, and watched from then on.

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
use crate::wire::{decoded, key_values, number, range, revision, watch_deletions, watch_writes};

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
}

/// A stream of watches.
struct Stream {
    connection: Connection,
    /// The first keys of the names, by the numbers of their watches.
    names: Vec<Option<String>>,
    /// What ended leases so far.
    endings: Endings,
}

/// What shows that leases ended before their time.
#[derive(PartialEq, Eq)]
struct Endings {
    /// When `unlock` took a lock away; 0 if it never did.
    unlocked: i64,
    /// When the base of the epochs was created, which a wipe deletes; 0 if it is missing.
    base: i64,
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
        let mut known = None;
        while !self.rests() {
            let began = Instant::now();
            let stream = self.connect(known.as_ref());
            known = stream.map(|stream| self.listen(stream));
            let mut state = self.state.lock();
            state.socket = None;
            if state.has_changed {
                continue;
            }
            drop(state);
            // The member may have gone, or the cluster have been replaced.
            known = None;
            self.verifiers.verify_all();
            if began.elapsed() > LONGEST_PAUSE {
                backoff = Backoff::new(PAUSE, LONGEST_PAUSE);
            }
            thread::park_timeout(backoff.next_pause());
        }
    }

    /// Opens a stream with a watch for what ends leases, and one for each name. Verifies the leases unless all endings
    /// are `known`.
    ///
    /// etcd reports past events 100 ms late, and another stream may have replaced this one by then. So the endings are
    /// read first, and no waiter interrupts that read.
    fn connect(&self, known: Option<&Endings>) -> Option<Stream> {
        let mut state = self.state.lock();
        // Also if no connection is opened: a failure is to be followed by a pause.
        state.has_changed = false;
        let newest = state.names.newest();
        drop(state);
        let mut connection = self.connector.connect(Duration::MAX).ok()?;
        let (endings, now) = self.read(&mut connection)?;
        if known != Some(&endings) {
            self.verifiers.verify_all();
        }
        // Without it, neither a waiter nor a provider that is dropped could end the stream.
        let socket = connection.socket().try_clone().ok()?;
        let mut state = self.state.lock();
        state.socket = Some(socket);
        state.has_changed = false;
        if self.store.strong_count() == 0 {
            // It was closed before there was a socket to shut down.
            return None;
        }
        if now < newest {
            // Revisions begin again in a cluster that was made anew or restored.
            state.names.clear();
        }
        let base = KeyRange::one(self.keys.base.as_str());
        let mut requests = vec![
            watch_writes(&self.keys.ended, now + 1),
            watch_deletions(&base, now + 1),
        ];
        let mut names = vec![None, None];
        for (keys, from) in state.names.in_use() {
            requests.push(watch_deletions(keys, from));
            names.push(Some(keys.first.clone()));
        }
        drop(state);
        let requests: String = requests.iter().map(Value::to_string).collect();
        connection.watch(&requests, REPLY_TIME).ok()?;
        Some(Stream {
            connection,
            names,
            endings,
        })
    }

    /// Reads the endings, with the revision of the store.
    fn read(&self, connection: &mut Connection) -> Option<(Endings, i64)> {
        let keys = self.keys.all();
        let reply = connection.call("/v3/kv/range", &range(&keys), REPLY_TIME);
        let reply = reply.ok()?;
        let found = key_values(&reply);
        let found = |key: &str| found.iter().find(|it| it.key == key);
        let endings = Endings {
            unlocked: found(&self.keys.ended).map_or(0, |it| it.modified),
            base: found(&self.keys.base).map_or(0, |it| it.created),
        };
        Some((endings, revision(&reply)))
    }

    /// Listens until the stream ends, or has a watch that is of no use. Returns the endings so far.
    fn listen(&self, stream: Stream) -> Endings {
        let Stream {
            mut connection,
            names,
            mut endings,
        } = stream;
        while let Ok(Some(message)) = connection.next_message() {
            let Some(result) = message.get("result") else {
                break;
            };
            let mut state = self.state.lock();
            let watch = result.get("watch_id").map_or(0, number);
            let watch = usize::try_from(watch).ok().and_then(|at| names.get(at));
            let is_cancelled = result.get("canceled").is_some();
            let events = result.get("events").and_then(Value::as_array);
            let events = events.map_or(&[][..], Vec::as_slice);
            match watch {
                // Its first revision may be compacted.
                Some(Some(name)) if is_cancelled => state.names.cancelled(name),
                Some(Some(name)) => {
                    let deletions: Vec<_> = events.iter().filter_map(changed).collect();
                    if !state.names.deleted(name, &deletions) {
                        state.has_changed = true;
                        break;
                    }
                }
                _ if is_cancelled => break,
                _ if !events.is_empty() => {
                    drop(state);
                    for (key, at) in events.iter().filter_map(changed) {
                        match key == self.keys.ended {
                            true => endings.unlocked = at,
                            false => endings.base = 0,
                        }
                    }
                    self.verifiers.verify_all();
                }
                _ => {}
            }
        }
        endings
    }
}

/// Returns the key of a write or a deletion, and the revision.
fn changed(event: &Value) -> Option<(String, i64)> {
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
