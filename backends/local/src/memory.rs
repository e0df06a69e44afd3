//! `memory:`: locks within one process, with leases, tokens and waiting like everywhere.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, Weak};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Admin, Capabilities, Clock, Driver, Error, ErrorKind, Grant, HostInstant,
    Lease, LockName, LockProvider, OpenContext, Released, Renewal, SystemClock,
};

mod admin;
mod line;

use line::{Shard, lock};

const BACKEND: &str = "memory";
const SHARDS: usize = 32;

/// Opens `memory:` (a store of its own) and `memory:NAME` (one store for every keeper of the
/// process that names it with the same namespace).
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryDriver;

impl Driver for MemoryDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["memory"]
    }

    fn keys(&self) -> &'static [&'static str] {
        &[]
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let url = target.url();
        let is_placed = url.host().is_some()
            || url.port().is_some()
            || url.username()?.is_some()
            || url.password()?.is_some();
        if is_placed {
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

/// Locks in the memory of this process; see [`MemoryDriver`]. Clones are the same store.
#[derive(Clone)]
pub struct MemoryProvider {
    store: Arc<Store>,
}

impl MemoryProvider {
    /// A store of its own, on the host's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// A store of its own, on the clock that its keepers count on.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            store: Store::new(None, clock),
        }
    }

    /// The store that everybody in this process shares who gives this name and namespace. It ends
    /// with its last provider and lease.
    pub fn shared(name: &str, namespace: &str) -> Self {
        Self::shared_with_clock(name, namespace, Arc::new(SystemClock))
    }

    /// The same, on the clock that its keepers count on. Whoever comes first decides on the clock.
    pub fn shared_with_clock(name: &str, namespace: &str, clock: Arc<dyn Clock>) -> Self {
        let place = (name.to_owned(), namespace.to_owned());
        // Made before the look and dropped after it: a clock's and a store's own mutexes are never
        // taken while the registry's is held.
        let new = Store::new(Some(place.clone()), clock);
        let mut shared = lock(&SHARED);
        let store = match shared.get(&place).and_then(Weak::upgrade) {
            Some(store) => store,
            None => {
                shared.insert(place, Arc::downgrade(&new));
                Arc::clone(&new)
            }
        };
        drop(shared);
        Self { store }
    }
}

/// Doors for tests of what a program does when it loses a lock, and for people on call.
impl MemoryProvider {
    /// The names that are held now, in no order; those whose lease ran out included, until somebody
    /// asks for them again.
    pub fn held(&self) -> Vec<LockName> {
        let shards = self.store.shards.iter();
        shards.flat_map(Shard::view).map(|seen| seen.name).collect()
    }

    /// Takes the lock from whoever holds it; the next waiter gets it. Its holder finds itself lost
    /// at its next renewal. False: nobody held it.
    pub fn evict(&self, name: &LockName) -> bool {
        let now = self.store.clock.now();
        self.store.shard(name.hash64()).evict(name, None, now)
    }

    /// Takes all locks from their holders, as a store does that forgot everything.
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
            .field("shared", &self.store.place)
            .finish_non_exhaustive()
    }
}

impl LockProvider for MemoryProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.store)
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant>, Error> {
        let name = request.name();
        let now = request.started();
        let attempt = self
            .store
            .shard(name.hash64())
            .attempt(name, request.ttl(), now);
        if let Some(epoch) = attempt {
            return Ok(Some(self.grant(name, epoch, now)));
        }
        request.contended();
        let Some(deadline) = request.deadline() else {
            return Ok(None);
        };
        let won = self.store.shard(name.hash64()).wait(request, deadline);
        Ok(won.map(|won| self.grant(name, won.epoch, won.asked_at)))
    }
}

impl MemoryProvider {
    fn grant(&self, name: &LockName, epoch: u64, asked_at: HostInstant) -> Grant {
        Grant {
            lease: Box::new(MemoryLease {
                store: Arc::clone(&self.store),
                hash: name.hash64(),
                epoch,
            }),
            asked_at,
        }
    }
}

type Place = (String, String);

/// The stores with a name. Each takes its own entry out when it ends.
static SHARED: LazyLock<Mutex<HashMap<Place, Weak<Store>>>> = LazyLock::new(Mutex::default);

struct Store {
    shards: [Shard; SHARDS],
    place: Option<Place>,
    clock: Arc<dyn Clock>,
}

impl Store {
    fn new(place: Option<Place>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let store = Arc::new(Self {
            shards: std::array::from_fn(|_| Shard::default()),
            place,
            clock,
        });
        let weak = Arc::downgrade(&store);
        store.clock.on_jump(Arc::new(move || {
            if let Some(store) = weak.upgrade() {
                store.shards.iter().for_each(Shard::poke_all);
            }
        }));
        store
    }

    fn shard(&self, hash: u64) -> &Shard {
        // The table inside uses the lowest and the highest bits.
        let index = (hash >> 32) as usize % SHARDS;
        let [first, ..] = &self.shards;
        self.shards.get(index).unwrap_or(first)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("shared", &self.place)
            .finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            let mut shared = lock(&SHARED);
            // By now a new store may stand there.
            if shared.get(place).is_some_and(|it| it.strong_count() == 0) {
                shared.remove(place);
            }
        }
    }
}

struct MemoryLease {
    store: Arc<Store>,
    /// Where to look; no two grants of the process have the same epoch.
    hash: u64,
    epoch: u64,
}

impl fmt::Debug for MemoryLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLease")
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl Lease for MemoryLease {
    fn epoch(&self) -> u64 {
        self.epoch
    }

    fn renew(&mut self, ttl: Duration, _deadline: HostInstant) -> Result<Renewal, Error> {
        let now = self.store.clock.now();
        let shard = self.store.shard(self.hash);
        Ok(shard.renew(self.hash, self.epoch, ttl, now))
    }

    fn release(self: Box<Self>, _deadline: HostInstant) -> Result<Released, Error> {
        let shard = self.store.shard(self.hash);
        Ok(shard.release(self.hash, self.epoch, &*self.store.clock))
    }
}

#[cfg(test)]
mod tests;
