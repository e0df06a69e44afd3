//! `memory:`: locks within one process, with leases, tokens and waiting as on other stores.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Clock, Driver, Error, ErrorKind, Grant,
    HostInstant, KeySpec, LockName, LockProvider, OpenContext, Released, Renewal, StoreUrl,
    SystemClock,
};

mod admin;
mod wait_queue;

use crate::lock;
use wait_queue::Shard;

const BACKEND: &str = "memory";
const SHARDS: usize = 32;

/// Opens `memory:`, a private store, and `memory:NAME`, one store for all keepers of the process with
/// this name and the same namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryDriver;

impl Driver for MemoryDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["memory"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        &[]
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let url = target.url();
        let has_authority = url.host().is_some()
            || url.port().is_some()
            || url.username()?.is_some()
            || url.password()?.is_some();
        if has_authority {
            return Err(Error::new(
                ErrorKind::InvalidUrl,
                "`memory:` has no host, port or user; write memory: or memory:NAME",
            )
            .with_backend(BACKEND));
        }
        let name = url.path()?;
        let clock = Arc::clone(target.clock());
        Ok(Arc::new(if name.is_empty() {
            MemoryProvider::with_clock(clock)
        } else {
            MemoryProvider::shared_with_clock(&name, target.namespace(), clock)
        }))
    }
}

/// Grants locks in the memory of this process; see [`MemoryDriver`]. Clones are the same store.
#[derive(Clone)]
pub struct MemoryProvider {
    store: Arc<Store>,
}

impl MemoryProvider {
    /// Creates a private store on the host's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// Creates a private store on the clock of its keepers.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            store: Store::new(None, clock),
        }
    }

    /// Opens the store of this process with this name and namespace. The store ends with its last
    /// provider and lease.
    pub fn shared(name: &str, namespace: &str) -> Self {
        Self::shared_with_clock(name, namespace, Arc::new(SystemClock))
    }

    /// Opens the store with this name and namespace on the clock of its keepers. An existing store keeps
    /// the clock of its first provider.
    pub fn shared_with_clock(name: &str, namespace: &str, clock: Arc<dyn Clock>) -> Self {
        let key = (name.to_owned(), namespace.to_owned());
        // Created and dropped outside of the registry's mutex, because both lock other mutexes.
        let new = Store::new(Some(key.clone()), clock);
        let mut shared = lock(&SHARED);
        let store = match shared.get(&key).and_then(Weak::upgrade) {
            Some(store) => store,
            None => {
                shared.insert(key, Arc::downgrade(&new));
                Arc::clone(&new)
            }
        };
        drop(shared);
        Self { store }
    }
}

/// Lists and ends holds, for operators and for tests of programs that lose a lock.
impl MemoryProvider {
    /// Returns the held names in no order, including expired ones until they are granted again.
    pub fn held(&self) -> Vec<LockName> {
        let shards = self.store.shards.iter();
        shards
            .flat_map(Shard::view)
            .map(|entry| entry.name)
            .collect()
    }

    /// Takes the lock from its holder, whose guard is lost at its next renewal; the next waiter gets the
    /// lock. Returns `false` if the name was not held.
    pub fn evict(&self, name: &LockName) -> bool {
        let now = self.store.clock.now();
        self.store.shard(name.hash64()).evict(name, None, now)
    }

    /// Takes all locks from their holders.
    pub fn clear(&self) {
        for name in self.held() {
            self.evict(&name);
        }
    }
}

impl Default for MemoryProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryProvider")
            .field("shared", &self.store.key)
            .finish_non_exhaustive()
    }
}

impl Backend for MemoryProvider {
    type Lease = MemoryLease;

    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        match &self.store.key {
            None => "memory:".to_owned(),
            Some((name, namespace)) => {
                StoreUrl::location("memory:", name, &[("namespace", namespace)])
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.store)
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<MemoryLease>>, Error> {
        let name = request.name();
        let now = request.started();
        let attempt = self
            .store
            .shard(name.hash64())
            .attempt(name, request.ttl(), now);
        if let Some(epoch) = attempt {
            return Ok(Some(grant(name, epoch, now)));
        }
        request.contended();
        let Some(deadline) = request.deadline() else {
            return Ok(None);
        };
        let won = self.store.shard(name.hash64()).wait(request, deadline);
        Ok(won.map(|won| grant(name, won.epoch, won.asked_at)))
    }

    fn renew(
        &self,
        lease: &mut MemoryLease,
        ttl: Duration,
        _deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        let now = self.store.clock.now();
        let shard = self.store.shard(lease.hash);
        Ok(shard.renew(lease.hash, lease.epoch, ttl, now))
    }

    fn release(&self, lease: &mut MemoryLease, _deadline: HostInstant) -> Result<Released, Error> {
        let shard = self.store.shard(lease.hash);
        Ok(shard.release(lease.hash, lease.epoch, &*self.store.clock))
    }
}

fn grant(name: &LockName, epoch: u64, asked_at: HostInstant) -> Grant<MemoryLease> {
    let hash = name.hash64();
    Grant {
        lease: MemoryLease { hash, epoch },
        epoch,
        asked_at,
    }
}

/// The name and the namespace of a shared store.
type StoreKey = (String, String);

/// The shared stores. A store removes its entry when it ends.
static SHARED: LazyLock<Mutex<HashMap<StoreKey, Weak<Store>>>> = LazyLock::new(Mutex::default);

struct Store {
    shards: [Shard; SHARDS],
    key: Option<StoreKey>,
    clock: Arc<dyn Clock>,
}

impl Store {
    fn new(key: Option<StoreKey>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let store = Arc::new(Self {
            shards: std::array::from_fn(|_| Shard::default()),
            key,
            clock,
        });
        let weak = Arc::downgrade(&store);
        store.clock.on_jump(Arc::new(move || {
            if let Some(store) = weak.upgrade() {
                store.shards.iter().for_each(Shard::unpark_all);
            }
        }));
        store
    }

    fn shard(&self, hash: u64) -> &Shard {
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

/// A grant of a [`MemoryProvider`].
#[derive(Debug)]
pub struct MemoryLease {
    /// Finds the name: no two grants of the process have the same epoch.
    hash: u64,
    epoch: u64,
}
