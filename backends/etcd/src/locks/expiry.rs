//! Ends the keys of leases that were not renewed in time, while other locks keep the shared lease in etcd alive.
//!
//! A lock with a fixed lease, or of a leaked guard, is no longer renewed while its process lives on. One thread
//! deletes such keys at their own end. When the process is gone, the lease in etcd ends with all keys.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use lockkeeper_core::{Error, HostInstant, Timer};
use parking_lot::Mutex;

use super::lease::delete;
use super::leases::Leases;
use crate::connection::client::Client;

/// A key that ends unless it is renewed.
#[derive(Clone, Copy, Debug)]
struct Entry {
    ends: HostInstant,
    created: i64,
    /// See [`EtcdLease::resumed`](super::lease::EtcdLease::resumed).
    resumed: i64,
    lease: i64,
}

impl Entry {
    fn is_of(&self, (created, resumed): (i64, i64)) -> bool {
        self.created == created && self.resumed == resumed
    }
}

/// The keys of a provider with their ends, and the thread that deletes them.
pub(crate) struct Expiry {
    client: Arc<Client>,
    leases: Arc<Leases>,
    timer: Timer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    keys: HashMap<String, Entry>,
    next: Option<HostInstant>,
}

impl Expiry {
    pub(crate) fn new(client: Arc<Client>, leases: Arc<Leases>) -> Self {
        Self {
            timer: Timer::new(Arc::clone(&client.clock)),
            client,
            leases,
            state: Mutex::default(),
        }
    }

    /// Starts the thread, which ends when the provider does.
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), Error> {
        let this = Arc::downgrade(self);
        let run = move |_| Weak::upgrade(&this).map(|this| this.run());
        self.timer.start("lockkeeper-etcd", run)
    }

    /// Adds a granted key, or moves its end to a later time.
    ///
    /// A fixed lease is verified for the rest of its ttl, which the keeper counts from the last keep-alive before
    /// its grant. The key still gets its whole ttl.
    pub(crate) fn enter(&self, key: &str, of: (i64, i64), lease: i64, ends: HostInstant) {
        let (created, resumed) = of;
        let entry = Entry {
            ends,
            created,
            resumed,
            lease,
        };
        let mut state = self.state.lock();
        let known = state.keys.entry(key.to_owned()).or_insert(entry);
        if known.is_of(of) {
            known.ends = known.ends.max(ends);
            known.lease = lease;
        } else {
            // The former entry was an earlier request of the same key, or an earlier holder, which has ended.
            *known = entry;
        }
        if state.next.is_none_or(|next| ends < next) {
            state.next = Some(ends);
            self.timer.note(ends);
        }
    }

    /// Removes a key that was released or has ended. A later request may have it again.
    pub(crate) fn remove(&self, key: &str, of: (i64, i64)) {
        let keys = &mut self.state.lock().keys;
        if keys.get(key).is_some_and(|entry| entry.is_of(of)) {
            keys.remove(key);
        }
    }

    /// Ends the keys that are due, and returns when one is due next.
    fn run(&self) -> HostInstant {
        let clock = &self.client.clock;
        let now = clock.now();
        let mut state = self.state.lock();
        let over = state.keys.extract_if(|_, entry| entry.ends <= now);
        let over: Vec<(String, Entry)> = over.collect();
        drop(state);
        for (key, entry) in over {
            let until = clock.now() + self.client.attempt();
            let delete = delete(&key, entry.created, entry.resumed);
            if self.client.txn(delete, until, None).is_err() {
                // The key must end nevertheless. The keys of the other locks move to another lease.
                self.leases.retire(entry.lease);
            }
        }
        let mut state = self.state.lock();
        state.next = state.keys.values().map(|entry| entry.ends).min();
        state.next.unwrap_or(HostInstant::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper_core::{Clock, SystemClock};

    use super::*;
    use crate::EtcdOptions;

    #[test]
    fn key_that_is_used_again_has_its_own_end() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let now = clock.now();
        let client = Client::new(&EtcdOptions::tcp("127.0.0.1", 1), clock).unwrap();
        let client = Arc::new(client);
        let leases = Arc::new(Leases::new(Arc::clone(&client)));
        let expiry = Expiry::new(client, leases);
        let after = |seconds| now + Duration::from_secs(seconds);
        let entry = || expiry.state.lock().keys.get("key").copied();
        expiry.enter("key", (1, 0), 7, after(9));
        expiry.enter("key", (1, 0), 7, after(8));
        assert_eq!(entry().unwrap().ends, after(9));
        expiry.enter("key", (2, 0), 7, after(3));
        let again = entry().unwrap();
        assert_eq!((again.created, again.ends), (2, after(3)));
        expiry.remove("key", (1, 0));
        assert!(entry().is_some());
        expiry.enter("key", (2, 5), 7, after(4));
        expiry.remove("key", (2, 0));
        assert_eq!(entry().unwrap().ends, after(4), "it was resumed");
        expiry.remove("key", (2, 5));
        assert!(entry().is_none());
    }
}
