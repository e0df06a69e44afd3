//! `memory:`: locks within one process, with leases, tokens and waiting like everywhere.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Slot;
use lockkeeper_core::{
    AcquireRequest, Capabilities, Clock, Driver, Error, ErrorKind, Grant, Lease, LockName,
    LockProvider, Moment, Released, Renewal, SystemClock, Target,
};

const BACKEND: &str = "memory";
const SHARDS: usize = 32;
/// A waiter looks after this long even if nobody woke it: condition variables do not count the
/// time that the host sleeps, leases do.
const LOOK: Duration = Duration::from_secs(1);

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

    fn open(&self, target: &Target<'_>) -> Result<Arc<dyn LockProvider>, Error> {
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
        shards.flat_map(Shard::names).collect()
    }

    /// Takes the lock from whoever holds it; the next waiter gets it. Its holder finds itself lost
    /// at its next renewal. False: nobody held it.
    pub fn evict(&self, name: &LockName) -> bool {
        let now = self.store.clock.now();
        self.store.shard(name.hash64()).evict(name, now)
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
    fn grant(&self, name: &LockName, epoch: u64, asked_at: Moment) -> Grant {
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

/// Locks, also after a panic elsewhere: every critical section here leaves its data whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Place = (String, String);

/// The stores with a name. Each takes its own entry out when it ends.
static SHARED: LazyLock<Mutex<HashMap<Place, Weak<Store>>>> = LazyLock::new(Mutex::default);

/// Starts at the wall clock in eighths of a microsecond, which 56 bits hold until 2255. A process
/// does not grant eight million times a second for all of its life, so a later process's epochs
/// are larger, and no grant needs to read a clock for its epoch.
static EPOCH: LazyLock<AtomicU64> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since.map_or(0, |since| since.as_micros());
    AtomicU64::new(u64::try_from(micros.saturating_mul(8)).unwrap_or(1).max(1))
});

fn next_epoch() -> u64 {
    EPOCH.fetch_add(1, Ordering::Relaxed)
}

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

/// A part of the names. Padded, so that two busy ones do not share a cache line.
#[derive(Default)]
#[repr(align(128))]
struct Shard {
    entries: Mutex<HashTable<Entry>>,
}

/// A name that is held. Who leaves one without a holder serves the next waiter or removes it.
struct Entry {
    name: LockName,
    epoch: u64,
    expires: Moment,
    waiters: VecDeque<Arc<Waiter>>,
}

struct Waiter {
    ttl: Duration,
    state: Mutex<WaiterState>,
    changed: Condvar,
}

struct WaiterState {
    won: Option<Won>,
    /// Until when it would sleep.
    until: Moment,
    /// "Look again."
    poked: bool,
}

#[derive(Clone, Copy)]
struct Won {
    epoch: u64,
    asked_at: Moment,
}

impl Waiter {
    fn poke(&self) {
        lock(&self.state).poked = true;
        self.changed.notify_one();
    }
}

impl Entry {
    /// Grants a name that nobody holds to the front of the line. False: there is no line.
    fn serve(&mut self, now: Moment) -> bool {
        let Some(waiter) = self.waiters.pop_front() else {
            return false;
        };
        self.epoch = next_epoch();
        self.expires = now + waiter.ttl;
        let mut state = lock(&waiter.state);
        state.won = Some(Won {
            epoch: self.epoch,
            asked_at: now,
        });
        drop(state);
        waiter.changed.notify_one();
        self.wake_early();
        true
    }

    /// Whoever stands in front now went to sleep with an earlier holder in mind; this one's lease
    /// may end sooner.
    fn wake_early(&self) {
        if let Some(front) = self.waiters.front()
            && lock(&front.state).until > self.expires
        {
            front.poke();
        }
    }
}

impl Shard {
    fn find<'a>(entries: &'a mut HashTable<Entry>, name: &LockName) -> Option<&'a mut Entry> {
        entries.find_mut(name.hash64(), |entry| entry.name == *name)
    }

    /// The name's epoch, if it is free (or its lease ran out) and nobody waits for it.
    fn attempt(&self, name: &LockName, ttl: Duration, now: Moment) -> Option<u64> {
        let mut entries = lock(&self.entries);
        let slot = entries.entry(
            name.hash64(),
            |entry| entry.name == *name,
            |entry| entry.name.hash64(),
        );
        let epoch = match slot {
            Slot::Vacant(vacant) => {
                let epoch = next_epoch();
                vacant.insert(Entry {
                    name: name.clone(),
                    epoch,
                    expires: now + ttl,
                    waiters: VecDeque::new(),
                });
                epoch
            }
            Slot::Occupied(mut occupied) => {
                let entry = occupied.get_mut();
                if now < entry.expires || entry.serve(now) {
                    return None;
                }
                entry.epoch = next_epoch();
                entry.expires = now + ttl;
                entry.epoch
            }
        };
        Some(epoch)
    }

    /// Stands in line until granted, cancelled or `deadline`.
    fn wait(&self, request: &AcquireRequest<'_>, deadline: Moment) -> Option<Won> {
        let name = request.name();
        let waiter = Arc::new(Waiter {
            ttl: request.ttl(),
            state: Mutex::new(WaiterState {
                won: None,
                until: Moment::NEVER,
                poked: false,
            }),
            changed: Condvar::new(),
        });
        let _wake = request.cancel().map(|cancel| {
            let waiter = Arc::clone(&waiter);
            cancel.on_cancel(move || waiter.poke())
        });
        let mut in_line = false;
        loop {
            let mut entries = lock(&self.entries);
            // Grants happen under the shard's mutex: this is the moment that decides.
            if let Some(won) = lock(&waiter.state).won {
                return Some(won);
            }
            let now = request.now();
            let over = now >= deadline || request.is_cancelled();
            let Some(entry) = Self::find(&mut entries, name) else {
                // Released before this one stood in line: no entry, so no line either.
                drop(entries);
                if request.is_cancelled() {
                    return None;
                }
                let epoch = self.attempt(name, waiter.ttl, now);
                match epoch {
                    Some(epoch) => {
                        return Some(Won {
                            epoch,
                            asked_at: now,
                        });
                    }
                    None => continue,
                }
            };
            if !over && !in_line {
                entry.waiters.push_back(Arc::clone(&waiter));
                in_line = true;
            }
            if now >= entry.expires && entry.serve(now) {
                // To this one or to one before it.
                continue;
            }
            if over {
                let was_front = entry
                    .waiters
                    .front()
                    .is_some_and(|it| Arc::ptr_eq(it, &waiter));
                entry.waiters.retain(|it| !Arc::ptr_eq(it, &waiter));
                if was_front {
                    entry.wake_early();
                }
                return None;
            }
            let until = entry.expires.min(deadline);
            let mut state = lock(&waiter.state);
            state.until = until;
            let poked = std::mem::take(&mut state.poked);
            drop(entries);
            if poked || state.won.is_some() {
                continue;
            }
            let limit = until.saturating_since(now).min(LOOK);
            let woken = waiter
                .changed
                .wait_timeout_while(state, limit, |state| state.won.is_none() && !state.poked);
            drop(woken);
        }
    }

    fn renew(&self, hash: u64, epoch: u64, ttl: Duration, now: Moment) -> Renewal {
        let mut entries = lock(&self.entries);
        match entries.find_mut(hash, |entry| entry.epoch == epoch) {
            Some(entry) if now < entry.expires => {
                entry.expires = now + ttl;
                entry.wake_early();
                Renewal::Renewed
            }
            _ => Renewal::Lost,
        }
    }

    fn release(&self, hash: u64, epoch: u64, clock: &dyn Clock) -> Released {
        let mut entries = lock(&self.entries);
        let found = entries.find_entry(hash, |entry| entry.epoch == epoch);
        let Ok(mut occupied) = found else {
            return Released::AlreadyLost;
        };
        // Whether it is late is known to the engine, by the guard's own deadline: the clock is
        // read only for the next one's lease.
        let entry = occupied.get_mut();
        if entry.waiters.is_empty() || !entry.serve(clock.now()) {
            occupied.remove();
        }
        Released::Done
    }

    fn evict(&self, name: &LockName, now: Moment) -> bool {
        let mut entries = lock(&self.entries);
        let found = entries.find_entry(name.hash64(), |entry| entry.name == *name);
        let Ok(mut occupied) = found else {
            return false;
        };
        if !occupied.get_mut().serve(now) {
            occupied.remove();
        }
        true
    }

    fn names(&self) -> Vec<LockName> {
        let entries = lock(&self.entries);
        entries.iter().map(|entry| entry.name.clone()).collect()
    }

    fn poke_all(&self) {
        for entry in lock(&self.entries).iter() {
            for waiter in &entry.waiters {
                waiter.poke();
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

    fn renew(&mut self, ttl: Duration, _deadline: Moment) -> Result<Renewal, Error> {
        let now = self.store.clock.now();
        let shard = self.store.shard(self.hash);
        Ok(shard.renew(self.hash, self.epoch, ttl, now))
    }

    fn release(self: Box<Self>, _deadline: Moment) -> Result<Released, Error> {
        let shard = self.store.shard(self.hash);
        Ok(shard.release(self.hash, self.epoch, &*self.store.clock))
    }
}

#[cfg(test)]
mod tests;
