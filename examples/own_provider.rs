//! A backend for a store of your own, complete, with the suite that all backends pass. To write yours,
//! copy this file, and put the requests to your store where this one changes its map.
//!
//! The docs of [`Backend`] are the contract, and docs/writing-a-backend.md has what is easy to get wrong.
//! `cargo run --example own_provider` runs the suite.

use std::collections::{HashMap, VecDeque};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, SystemTime};

use lockkeeper::backend::{
    AcquireRequest, Backend, Capabilities, Driver, Drivers, Grant, KeySpec, LockProvider,
    OpenContext, Operation, Owner, Renewal, StoreInfo, StoreUrl, epoch_at,
};
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{Config, Error, LockName, Released};
use lockkeeper_conformance::{Fixture, Run, Suite};

// ---- The store: your server's part. Here it is the memory of this process.

/// All locks, by namespace and name.
#[derive(Debug, Default)]
struct Store {
    locks: HashMap<Key, Lock>,
    last_epoch: u64,
}

/// Different strings are different locks: escape what your store cannot keep as it is.
type Key = (String, LockName);

#[derive(Debug, Default)]
struct Lock {
    /// The last grant: its epoch, and when its lease ends.
    holder: Option<(u64, HostInstant)>,
    /// The requests that wait, in the order of their arrival.
    queue: VecDeque<(Owner, Thread)>,
}

impl Lock {
    fn is_held(&self, now: HostInstant) -> bool {
        self.holder.is_some_and(|(_, until)| now < until)
    }

    /// Wakes one waiter, not all.
    fn wake_first(&self) {
        if let Some((_, thread)) = self.queue.front() {
            thread.unpark();
        }
    }
}

impl Store {
    /// Returns the lock if `lease` is still valid.
    fn held_by(&mut self, lease: &MyLease) -> Option<&mut Lock> {
        let lock = self.locks.get_mut(&lease.key)?;
        let (epoch, until) = lock.holder?;
        (epoch == lease.epoch && SystemClock.now() < until).then_some(lock)
    }

    /// Removes what is neither held nor waited for.
    fn tidy(&mut self, now: HostInstant) {
        let is_used = |lock: &Lock| lock.is_held(now) || !lock.queue.is_empty();
        self.locks.retain(|_, lock| is_used(lock));
    }
}

// ---- The backend: what lockkeeper asks of the store.

/// One namespace of the store. A real backend has its connections here.
#[derive(Debug)]
struct MyBackend {
    store: Arc<Mutex<Store>>,
    namespace: String,
}

/// What the backend needs to renew and to release a grant. The epoch tells it from later grants.
#[derive(Debug)]
struct MyLease {
    key: Key,
    epoch: u64,
}

impl MyBackend {
    /// The longest time between two polls of a waiter, for a notification that was lost.
    const POLL: Duration = Duration::from_secs(1);

    fn open(store: &Arc<Mutex<Store>>, namespace: &str) -> Arc<dyn LockProvider> {
        Arc::new(Self {
            store: Arc::clone(store),
            namespace: namespace.to_owned(),
        })
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreInfo for MyBackend {
    fn backend(&self) -> &'static str {
        "mine"
    }

    fn location(&self) -> String {
        StoreUrl::location("mine:", "", &[("namespace", &self.namespace)])
    }

    /// Declares no capability: this store excludes the threads of one process only.
    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }
}

impl MyBackend {
    /// An expired lease is lost, even if the name is free.
    fn renew(&self, lease: &MyLease, ttl: Duration) -> Result<Renewal, Error> {
        let mut store = self.store();
        let Some(lock) = store.held_by(lease) else {
            return Ok(Renewal::Lost);
        };
        lock.holder = Some((lease.epoch, SystemClock.now() + ttl));
        Ok(Renewal::Renewed)
    }

    /// Frees the name only if the lease is still valid: it may be another holder's by now.
    fn release(&self, lease: &MyLease) -> Result<Released, Error> {
        let mut store = self.store();
        let Some(lock) = store.held_by(lease) else {
            return Ok(Released::AlreadyLost);
        };
        lock.holder = None;
        lock.wake_first();
        store.tidy(SystemClock.now());
        Ok(Released::Done)
    }
}

impl Backend for MyBackend {
    type Lease = MyLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<MyLease>>, Error> {
        // A real store keeps the owner beside the lock. If `request.is_retry()`, an earlier reply was
        // lost, and a lock with this owner is the grant.
        let owner = request.owner();
        let key = (self.namespace.clone(), request.name().clone());
        let thread = thread::current();
        let _registered = request.cancel().map(|token| {
            let thread = thread.clone();
            token.on_cancel(move || thread.unpark())
        });
        loop {
            // Read before the request is sent: the engine counts the lease from here.
            let asked_at = request.now();
            let mut store = self.store();
            let Store { locks, last_epoch } = &mut *store;
            let lock = locks.entry(key.clone()).or_default();
            if lock.queue.iter().all(|(waiter, _)| *waiter != owner) {
                lock.queue.push_back((owner, thread.clone()));
            }
            let is_first = lock.queue.front().is_some_and(|first| first.0 == owner);
            if is_first && !lock.is_held(asked_at) {
                lock.queue.pop_front();
                // Greater than every epoch before, also those of another store from which locks moved here,
                // and even if this store has lost its data.
                let epoch = epoch_at(SystemTime::now()).max(*last_epoch + 1);
                *last_epoch = epoch;
                lock.holder = Some((epoch, asked_at + request.ttl()));
                let lease = MyLease { key, epoch };
                return Ok(Some(Grant {
                    lease,
                    epoch,
                    asked_at,
                    slot: 0,
                }));
            }
            // Before each wait, and before `None`: another holder was seen.
            request.contended();
            let deadline = request.deadline().unwrap_or(asked_at);
            if deadline <= asked_at || request.is_cancelled() {
                // Nothing stays behind, and the next waiter may be the first now.
                lock.queue.retain(|(waiter, _)| *waiter != owner);
                lock.wake_first();
                store.tidy(asked_at);
                return Ok(None);
            }
            // The release of the holder wakes this thread; the end of its lease does not.
            let expires = lock.holder.map(|(_, until)| until);
            let expires = expires.filter(|until| asked_at < *until);
            let wake_at = expires.map_or(deadline, |until| until.min(deadline));
            drop(store);
            thread::park_timeout(wake_at.saturating_since(asked_at).min(Self::POLL));
        }
    }

    fn batch(&self, batch: &mut [Operation<'_, MyLease>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                Operation::Renew(it) => it.answer = Some(self.renew(it.lease, it.ttl)),
                Operation::Release(it) => it.answer = Some(self.release(it.lease)),
            }
        }
    }
}

// ---- The driver: opens the store of a URL such as `mine:?namespace=shop&ttl=10s`.

#[derive(Debug, Default)]
struct MyDriver(Arc<Mutex<Store>>);

impl Driver for MyDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["mine"]
    }

    /// Returns the keys of this store's own; `ttl`, `wait` and `namespace` are common to all.
    fn keys(&self) -> &'static [KeySpec] {
        &[]
    }

    /// The epochs are those of [`epoch_at`].
    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        Ok(MyBackend::open(&self.0, target.namespace()))
    }
}

// ---- The suite: a throw-away store for each case, with the faults that this store can suffer.

#[derive(Default)]
struct Fresh(Arc<Mutex<Store>>);

impl Fresh {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fixture for Fresh {
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error> {
        Ok(MyBackend::open(&self.0, namespace))
    }

    fn wipe(&self) -> bool {
        *self.store() = Store::default();
        true
    }

    fn end_lease(&self, namespace: &str, name: &str) -> bool {
        let mut store = self.store();
        let mut locks = store.locks.iter_mut();
        let found = locks.find(|(key, _)| key.0 == namespace && key.1.as_str() == name);
        found.is_some_and(|(_, lock)| lock.holder.take().is_some())
    }

    fn leftovers(&self) -> Option<Vec<String>> {
        let mut store = self.store();
        store.tidy(SystemClock.now());
        Some(store.locks.keys().map(|key| format!("{key:?}")).collect())
    }
}

fn main() -> Result<ExitCode, Error> {
    let drivers = Drivers::new().with(MyDriver::default());
    let keeper = drivers.open(&Config::from_url("mine:?namespace=shop")?)?;
    keeper.lock("seat:42")?.release()?;

    let suite = Suite::new("own_provider", "mine", || Box::new(Fresh::default()));
    Ok(Run::new().suite(suite).main())
}
