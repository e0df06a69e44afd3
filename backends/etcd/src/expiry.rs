//! Ends the keys of leases that were not renewed in time, while other locks keep the shared lease in etcd alive.
//!
//! A lock with a fixed lease, or one whose guard was forgotten, is renewed no more, and its process lives on.
//! One thread deletes such keys at their own end. When the process is gone, the lease in etcd ends with all keys.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use lockkeeper_core::{Error, HostInstant, Timer};
use parking_lot::Mutex;

use crate::store::Store;

/// A key that ends unless it is renewed.
#[derive(Clone, Copy, Debug)]
struct Entry {
    ends: HostInstant,
    created: i64,
    lease: i64,
}

/// The keys of a provider with their ends, and the thread that deletes them.
pub(crate) struct Expiry {
    timer: Timer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: HashMap<String, Entry>,
    /// The leases to keep alive soon, one for each ttl.
    refresh: Vec<Refresh>,
    next: Option<HostInstant>,
}

/// A keep-alive of the lease for `ttl`.
#[derive(Clone, Copy, Debug)]
struct Refresh {
    ttl: Duration,
    /// When the last key was bound to the lease. It needs no keep-alive a ttl later.
    granted: HostInstant,
    /// How long the keep-alive was put off.
    pause: Duration,
    due: HostInstant,
}

impl Refresh {
    fn new(ttl: Duration, granted: HostInstant) -> Self {
        let pause = ttl / 64;
        Self {
            ttl,
            granted,
            pause,
            due: granted + pause,
        }
    }

    /// Returns the next one after one that failed, if it is still of use.
    fn retry(self, now: HostInstant) -> Option<Self> {
        let pause = self.pause * 2;
        let due = now + pause;
        let is_of_use = due < self.granted + self.ttl;
        is_of_use.then_some(Self { pause, due, ..self })
    }
}

impl Expiry {
    pub(crate) fn new(timer: Timer) -> Self {
        let state = Mutex::default();
        Self { timer, state }
    }

    /// Starts the thread.
    pub(crate) fn start(&self, store: Weak<Store>) -> Result<(), Error> {
        self.timer.start("lockkeeper-etcd", move |_| {
            let store = store.upgrade()?;
            Some(store.expiry.run(&store))
        })
    }

    /// Enters a granted key, or moves its end to a later time.
    ///
    /// A fixed lease is verified for the rest of its ttl, which the keeper counts from the last keep-alive before
    /// its grant. The key is to have its whole ttl all the same.
    pub(crate) fn enter(&self, key: &str, created: i64, lease: i64, ends: HostInstant) {
        let entry = Entry {
            ends,
            created,
            lease,
        };
        let mut state = self.state.lock();
        let known = state.keys.entry(key.to_owned()).or_insert(entry);
        if known.created == created {
            known.ends = known.ends.max(ends);
            known.lease = lease;
        } else {
            // An earlier request had the key, which has ended.
            *known = entry;
        }
        self.note(&mut state, ends);
    }

    /// Removes a key that was released or has ended. A later request may have it again.
    pub(crate) fn remove(&self, key: &str, created: i64) {
        let keys = &mut self.state.lock().keys;
        if keys.get(key).is_some_and(|entry| entry.created == created) {
            keys.remove(key);
        }
    }

    /// Schedules a keep-alive of the lease for `ttl`, so that a key that was bound to it at `granted` has its whole ttl.
    pub(crate) fn refresh(&self, ttl: Duration, granted: HostInstant) {
        self.enter_refresh(Refresh::new(ttl, granted));
    }

    fn enter_refresh(&self, refresh: Refresh) {
        let mut state = self.state.lock();
        let mut entered = state.refresh.iter_mut();
        if let Some(known) = entered.find(|it| it.ttl == refresh.ttl) {
            known.granted = known.granted.max(refresh.granted);
        } else {
            state.refresh.push(refresh);
            self.note(&mut state, refresh.due);
        }
    }

    fn note(&self, state: &mut State, due: HostInstant) {
        if state.next.is_none_or(|next| due < next) {
            state.next = Some(due);
            self.timer.note(due);
        }
    }

    /// Does what is due, and returns when something is due next.
    fn run(&self, store: &Store) -> HostInstant {
        let now = store.clock.now();
        let mut state = self.state.lock();
        let due: Vec<Refresh> = state.refresh.extract_if(.., |it| it.due <= now).collect();
        let over = state.keys.extract_if(|_, entry| entry.ends <= now);
        let over: Vec<(String, Entry)> = over.collect();
        drop(state);
        for refresh in due {
            // Also for the grants that came since: it is sent now.
            if !store.leases.refresh(store, refresh.ttl, now)
                && let Some(retry) = refresh.retry(store.clock.now())
            {
                self.enter_refresh(retry);
            }
        }
        for (key, entry) in over {
            let until = store.clock.now() + store.client.attempt();
            if store.delete(&key, entry.created, until).is_err() {
                // The key is to end all the same. The keys of the other locks move to another lease.
                store.leases.retire(entry.lease);
            }
        }
        let mut state = self.state.lock();
        let ends = state.keys.values().map(|entry| entry.ends);
        let next = ends.chain(state.refresh.iter().map(|it| it.due)).min();
        state.next = next;
        next.unwrap_or(HostInstant::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lockkeeper_core::{Clock, SystemClock};

    use super::*;

    #[test]
    fn key_that_is_used_again_has_its_own_end() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let (expiry, now) = (Expiry::new(Timer::new(Arc::clone(&clock))), clock.now());
        let after = |seconds| now + Duration::from_secs(seconds);
        let entry = || expiry.state.lock().keys.get("key").copied();
        expiry.enter("key", 1, 7, after(9));
        expiry.enter("key", 1, 7, after(8));
        assert_eq!(entry().unwrap().ends, after(9));
        expiry.enter("key", 2, 7, after(3));
        let again = entry().unwrap();
        assert_eq!((again.created, again.ends), (2, after(3)));
        expiry.remove("key", 1);
        assert!(entry().is_some());
        expiry.remove("key", 2);
        assert!(entry().is_none());
    }

    #[test]
    fn failed_keep_alives_come_ever_later_and_end() {
        let now = SystemClock.now();
        let ttl = Duration::from_secs(64);
        let first = Refresh::new(ttl, now);
        let all = std::iter::successors(Some(first), |it| it.retry(it.due));
        let due: Vec<_> = all.map(|it| it.due.saturating_since(now)).collect();
        assert_eq!(due, [1, 3, 7, 15, 31, 63].map(Duration::from_secs));
    }
}
