//! A register store in the memory of this process.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use lockkeeper_core::{
    CancelToken, Capabilities, Clock, Error, ErrorKind, Finding, HostInstant, StoreInfo, StoreUrl,
    SystemClock,
};
use lockkeeper_register::{Call, Entry, Key, Read, RegisterStore, SessionId, Version, View, Write};

/// All namespaces of a store.
#[derive(Debug)]
pub struct Map {
    state: Mutex<State>,
    changed: Condvar,
    pub notifies: bool,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<(String, Key), Entry>,
    /// When each session ends.
    sessions: HashMap<SessionId, HostInstant>,
    last: u64,
    faults: Faults,
    late: Vec<LateWrite>,
    calls: usize,
    most_checked: usize,
}

/// A write that arrives later.
#[derive(Debug)]
struct LateWrite {
    key: (String, Key),
    seen: Option<Version>,
    session: Option<SessionId>,
    also: Option<((String, Key), Version)>,
    value: Option<String>,
}

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub is_cut_off: bool,
    /// One in so many replies is lost; 0 is none. Some of these writes are carried out later, and some never.
    pub loses_one_in: u32,
    /// Writes are carried out, and their replies lost.
    pub loses_replies: bool,
    /// An entry that another transaction has locked, and how many writes of it are refused until that ends.
    pub locks: Option<(&'static str, u32)>,
    /// Sessions of this ttl are not opened.
    pub refuses_ttl: Option<Duration>,
}

impl Map {
    pub fn new(notifies: bool, faults: Faults) -> Self {
        Self {
            state: Mutex::new(State {
                faults,
                ..State::default()
            }),
            changed: Condvar::new(),
            notifies,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the map")
    }

    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.lock().faults);
    }

    /// Returns how many calls have reached the store.
    pub fn calls(&self) -> usize {
        self.lock().calls
    }

    /// Returns the most sessions that one read had to check.
    pub fn most_checked(&self) -> usize {
        self.lock().most_checked
    }

    pub fn wipe(&self) {
        let mut state = self.lock();
        state.entries.clear();
        state.sessions.clear();
        self.changed.notify_all();
    }

    /// Returns the values of the entries of names that are held or waited for.
    pub fn held(&self) -> Vec<String> {
        let state = self.lock();
        let values = state.entries.values().map(|entry| &entry.value);
        let held = values.filter(|it| it.contains(r#","l":["#) || it.contains(r#","q":["#));
        held.cloned().collect()
    }
}

impl State {
    fn apply(&mut self, write: LateWrite) -> Option<Version> {
        let version = |key: &(String, Key)| self.entries.get(key).map(|it| it.version);
        let also = write.also.as_ref();
        let is_met = version(&write.key) == write.seen
            && write.session.is_none_or(|session| self.lives(&session))
            && also.is_none_or(|(key, seen)| version(key) == Some(*seen));
        if !is_met || self.is_locked(&write.key.1) {
            return None;
        }
        self.last += 1;
        let version = self.last;
        match write.value {
            Some(value) => self.entries.insert(write.key, Entry { version, value }),
            None => self.entries.remove(&write.key),
        };
        Some(version)
    }

    fn is_locked(&mut self, key: &Key) -> bool {
        let locks = self.faults.locks.as_mut();
        let left = locks.filter(|(locked, left)| *locked == key.as_str() && *left > 0);
        left.map(|(_, left)| *left -= 1).is_some()
    }

    fn lives(&self, session: &str) -> bool {
        let now = SystemClock.now();
        self.sessions.get(session).is_some_and(|ends| now < *ends)
    }
}

/// One namespace of the store.
#[derive(Debug)]
pub struct MapStore {
    map: Arc<Map>,
    namespace: String,
}

impl MapStore {
    pub fn new(map: &Arc<Map>, namespace: &str) -> Self {
        Self {
            map: Arc::clone(map),
            namespace: namespace.to_owned(),
        }
    }

    fn reach(&self) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.map.lock();
        if state.faults.is_cut_off {
            return Err(Error::unreachable("the store is cut off"));
        }
        state.calls += 1;
        Ok(state)
    }

    fn full(&self, key: &Key) -> (String, Key) {
        (self.namespace.clone(), key.clone())
    }
}

impl StoreInfo for MapStore {
    fn backend(&self) -> &'static str {
        "map"
    }

    fn location(&self) -> String {
        StoreUrl::location("map:", "", &[("namespace", &self.namespace)])
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new().with_batch(64)
    }
}

impl RegisterStore for MapStore {
    fn read(&self, read: &Read<'_>, _: Call<'_>) -> Result<View, Error> {
        let mut state = self.reach()?;
        state.most_checked = state.most_checked.max(read.check.len());
        let now = SystemClock.now();
        for (session, ttl) in read.keep {
            if state.lives(session) {
                state.sessions.insert((*session).to_owned(), now + *ttl);
            }
        }
        let entries = read.keys.iter().map(|key| self.full(key));
        let entries = entries.map(|key| state.entries.get(&key).cloned());
        let sessions = read
            .keep
            .iter()
            .map(|(session, _)| session)
            .chain(read.check);
        let ended = sessions.filter(|session| !state.lives(session));
        Ok(View {
            entries: entries.collect(),
            ended: ended.map(|session| (*session).to_owned()).collect(),
        })
    }

    fn write(&self, writes: &[Write<'_>], _: Call<'_>) -> Result<Vec<Option<Version>>, Error> {
        let mut state = self.reach()?;
        let write = |write: &Write<'_>| LateWrite {
            key: self.full(write.key),
            seen: write.seen,
            session: write.session.map(str::to_owned),
            also: write.also.map(|(key, seen)| (self.full(key), seen)),
            value: write.value.map(str::to_owned),
        };
        let writes: Vec<_> = writes.iter().map(write).collect();
        let fate = match state.faults.loses_one_in {
            0 if state.faults.loses_replies => 2,
            0 => 3,
            loses => fastrand::u32(..3 * loses),
        };
        let written = match fate {
            // It is carried out after later ones, or never.
            0 => {
                state.late.extend(writes);
                Vec::new()
            }
            1 => Vec::new(),
            _ => writes.into_iter().map(|it| state.apply(it)).collect(),
        };
        while fastrand::bool() && !state.late.is_empty() {
            let at = fastrand::usize(..state.late.len());
            let late = state.late.swap_remove(at);
            state.apply(late);
        }
        self.map.changed.notify_all();
        match fate {
            0..=2 => Err(Error::new(ErrorKind::Unknown, "the reply is lost")),
            _ => Ok(written),
        }
    }

    fn open_session(&self, ttl: Duration, _: Call<'_>) -> Result<SessionId, Error> {
        let mut state = self.reach()?;
        if state.faults.refuses_ttl == Some(ttl) {
            return Err(Error::new(ErrorKind::InvalidTtl, "too long"));
        }
        state.last += 1;
        let id = state.last.to_string();
        state.sessions.insert(id.clone(), SystemClock.now() + ttl);
        Ok(id)
    }

    fn end_sessions(&self, sessions: &[&str], _: Call<'_>) -> Result<(), Error> {
        let mut state = self.reach()?;
        state
            .sessions
            .retain(|id, _| !sessions.contains(&id.as_str()));
        Ok(())
    }

    fn wait(&self, key: &Key, seen: Option<Version>, call: Call<'_>) -> Option<Result<(), Error>> {
        if !self.map.notifies {
            return None;
        }
        let mut state = match self.reach() {
            Ok(state) => state,
            Err(error) => return Some(Err(error)),
        };
        let map = Arc::clone(&self.map);
        let wake = move || map.changed.notify_all();
        let _wake = call.cancel.map(|cancel| cancel.on_cancel(wake));
        let key = self.full(key);
        loop {
            let is_over = call.cancel.is_some_and(CancelToken::is_cancelled);
            let left = call.deadline.saturating_since(SystemClock.now());
            let version = state.entries.get(&key).map(|it| it.version);
            if version != seen || is_over || left.is_zero() {
                return Some(Ok(()));
            }
            // A cancel between the check and the wait is noticed a little later.
            let limit = left.min(Duration::from_millis(50));
            state = self
                .map
                .changed
                .wait_timeout(state, limit)
                .expect("no thread panics")
                .0;
        }
    }

    fn list(&self, _: Call<'_>) -> Result<Vec<Entry>, Error> {
        let state = self.reach()?;
        let own = state.entries.iter().filter(|it| it.0.0 == self.namespace);
        Ok(own.map(|(_, entry)| entry.clone()).collect())
    }

    fn examine(&self, _call: Call<'_>) -> Result<Vec<Finding>, Error> {
        Ok(vec![Finding::fine(
            "reach",
            "the locks live in this process",
        )])
    }
}
