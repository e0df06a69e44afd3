//! The shards of an in-process store, the stores that keepers share, and the admin interface.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use lockkeeper_core::{
    Admin, Clock, Error, Finding, HeldName, Holder, HostInstant, LeaseVerifiers, LockName,
    Released, process_label,
};

use super::wait_queue::{LeaseView, Shard};
use crate::lock;

const SHARDS: usize = 32;

/// The name and the namespace of a shared store.
type StoreKey = (String, String);

/// The shared stores. A store removes its entry when it ends.
static SHARED: LazyLock<Mutex<HashMap<StoreKey, Weak<Store>>>> = LazyLock::new(Mutex::default);

pub(super) struct Store {
    pub(super) shards: [Shard; SHARDS],
    pub(super) key: Option<StoreKey>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) verifiers: LeaseVerifiers,
}

impl Store {
    pub(super) fn new(key: Option<StoreKey>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let store = Arc::new(Self {
            shards: std::array::from_fn(|_| Shard::new(&clock)),
            key,
            clock,
            verifiers: LeaseVerifiers::default(),
        });
        let weak = Arc::downgrade(&store);
        store.clock.on_jump(Arc::new(move || {
            if let Some(store) = weak.upgrade() {
                store.shards.iter().for_each(Shard::unpark_all);
            }
        }));
        store
    }

    /// Returns the store with this name and namespace. An existing store keeps its clock.
    pub(super) fn shared(name: &str, namespace: &str, clock: Arc<dyn Clock>) -> Arc<Self> {
        let key = (name.to_owned(), namespace.to_owned());
        // Created and dropped outside of the registry's mutex, because both lock other mutexes.
        let new = Self::new(Some(key.clone()), clock);
        let mut shared = lock(&SHARED);
        if let Some(store) = shared.get(&key).and_then(Weak::upgrade) {
            drop(shared);
            return store;
        }
        shared.insert(key, Arc::downgrade(&new));
        drop(shared);
        new
    }

    /// Returns all leases, or those on `name`, in no order. They may have expired.
    pub(super) fn leases(&self, name: Option<&LockName>) -> Vec<LeaseView> {
        let shards = match name {
            Some(name) => std::slice::from_ref(self.shard(name.hash64())),
            None => &self.shards[..],
        };
        let leases = shards.iter().flat_map(Shard::view);
        leases
            .filter(|it| name.is_none_or(|name| it.name == *name))
            .collect()
    }

    /// Ends leases, and has all keepers verify theirs. Returns whether one of them was still there.
    pub(super) fn evict(&self, leases: impl IntoIterator<Item = LeaseView>) -> bool {
        let end = |LeaseView { lease, .. }| {
            let shard = self.shard(lease.hash);
            shard.release(&lease, &*self.clock) == Released::Done
        };
        let was_held = leases.into_iter().map(end).fold(false, |any, it| any | it);
        if was_held {
            self.verifiers.verify_all();
        }
        was_held
    }

    pub(super) fn shard(&self, hash: u64) -> &Shard {
        // The table of a shard uses the lowest and the highest bits.
        let index = (hash >> 32) as usize % SHARDS;
        let [first, ..] = &self.shards;
        self.shards.get(index).unwrap_or(first)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("shared", &self.key)
            .finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(key) = &self.key {
            let mut shared = lock(&SHARED);
            // A new store may have this key already.
            if shared.get(key).is_some_and(|it| it.strong_count() == 0) {
                shared.remove(key);
            }
        }
    }
}

impl Admin for Store {
    fn held(
        &self,
        name: Option<&LockName>,
        _deadline: HostInstant,
    ) -> Result<Vec<HeldName>, Error> {
        let now = self.clock.now();
        let live = self.leases(name).into_iter().filter(|it| now < it.expires);
        let mut found: Vec<_> = live
            .map(|it| HeldName {
                mode: it.mode,
                slot: it.mode.is_permit().then_some(it.slot),
                holder: Holder {
                    pid: Some(std::process::id()),
                    label: process_label().map(str::to_owned),
                    ..Holder::default()
                },
                epoch: Some(it.lease.epoch),
                remaining: Some(it.expires.saturating_since(now)),
                waiting: u64::try_from(it.waiting).ok(),
                ..HeldName::new(it.name.as_str(), it.lease.epoch.to_string())
            })
            .collect();
        found.sort_by(|a, b| (&a.name, a.epoch).cmp(&(&b.name, b.epoch)));
        Ok(found)
    }

    fn force_release(&self, held: &HeldName, _deadline: HostInstant) -> Result<bool, Error> {
        let name = LockName::new(held.name.as_str())?;
        let leases = self.leases(Some(&name)).into_iter();
        Ok(self.evict(leases.filter(|it| it.lease.epoch.to_string() == held.mark)))
    }

    fn examine(&self, _deadline: HostInstant) -> Result<Vec<Finding>, Error> {
        Ok(vec![Finding::warning(
            "reach",
            "the locks live in the memory of one process",
            "they exclude the threads of that process, and no other process",
            "use sqlite: for several programs of one host, or a server for several hosts",
        )])
    }

    fn cannot_tell(&self) -> &'static [&'static str] {
        &["since when it is held"]
    }
}
