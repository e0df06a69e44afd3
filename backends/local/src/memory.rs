//! `memory:`: locks within one process, with leases, tokens and waiting as on other stores.

use std::sync::Arc;

use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Capability, Clock, Driver, Error, ErrorKind,
    Grant, KeySpec, LeaseVerifier, LockName, LockProvider, OpenContext, Operation, ReleaseDispatch,
    StoreInfo, StoreUrl, SystemClock,
};

mod entry;
mod epoch;
mod store;
mod wait_queue;

use store::Store;
use wait_queue::MemoryLease;

const BACKEND: &str = "memory";

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

    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn check(&self, context: &OpenContext<'_>) -> Result<(), Error> {
        let url = context.url();
        let has_authority = url.host().is_some()
            || url.port().is_some()
            || url.username().is_some()
            || url.password().is_some();
        if has_authority {
            return Err(Error::new(
                ErrorKind::InvalidUrl,
                "`memory:` has no host, port or user; write memory: or memory:NAME",
            )
            .with_backend(BACKEND));
        }
        Ok(())
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        self.check(target)?;
        let name = target.url().path();
        let clock = Arc::clone(target.clock());
        Ok(Arc::new(if name.is_empty() {
            MemoryProvider::with_clock(clock)
        } else {
            MemoryProvider::shared_with_clock(name, target.namespace(), clock)
        }))
    }
}

/// Grants locks in the memory of this process; see [`MemoryDriver`]. Clones are the same store.
#[derive(Clone, Debug)]
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
        Self {
            store: Store::shared(name, namespace, clock),
        }
    }
}

/// Lists and ends holds, for operators and for tests of programs that lose a lock.
impl MemoryProvider {
    /// Returns the names of held locks and permits, in no order. A name with an expired lease stays in the list
    /// until it is granted again.
    pub fn held(&self) -> Vec<LockName> {
        let leases = self.store.leases(None).into_iter();
        let mut names: Vec<_> = leases.map(|lease| lease.name).collect();
        names.sort();
        names.dedup();
        names
    }

    /// Ends all leases on `name`, of its lock and of its permits. Their guards are lost at once, and the
    /// next waiters are granted the name. Returns `false` if it was not held.
    pub fn evict(&self, name: &LockName) -> bool {
        self.store.evict(self.store.leases(Some(name)))
    }

    /// Takes all locks and permits from their holders.
    pub fn clear(&self) {
        self.store.evict(self.store.leases(None));
    }
}

impl Default for MemoryProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl StoreInfo for MemoryProvider {
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
            .with(Capability::Shared)
            .with(Capability::Permits)
            .with(Capability::ProposedEpoch)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.store)
    }
}

impl Backend for MemoryProvider {
    type Lease = MemoryLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<MemoryLease>>, Error> {
        let shard = self.store.shard(request.name().hash64());
        match shard.attempt(request, request.started(), None) {
            Ok(None) => {}
            answered => return answered,
        }
        request.contended();
        match request.deadline() {
            Some(deadline) => shard.wait(request, deadline),
            None => Ok(None),
        }
    }

    fn batch(&self, batch: &mut [Operation<'_, MemoryLease>]) {
        let Store { clock, .. } = &*self.store;
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                Operation::Renew(it) => {
                    let shard = self.store.shard(it.lease.hash);
                    it.answer = Some(Ok(shard.renew(it.lease, it.ttl, clock.now())));
                }
                Operation::Release(it) => {
                    let shard = self.store.shard(it.lease.hash);
                    it.answer = Some(Ok(shard.release(it.lease, &**clock)));
                }
            }
        }
    }

    fn send_release(&self, lease: &mut MemoryLease) -> ReleaseDispatch {
        let shard = self.store.shard(lease.hash);
        ReleaseDispatch::Answered(Ok(shard.release(lease, &*self.store.clock)))
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store.verifiers.add(verifier);
    }
}
