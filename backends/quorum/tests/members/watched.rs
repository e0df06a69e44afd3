//! Members that do something before they carry out attempts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Capabilities, ErasedLease, Error, Grant, HostInstant, LeaseVerifier,
    LockProvider, Operation, Proof, Released, Renewal, StoreInfo, SystemClock,
};
use lockkeeper_quorum::{QuorumMember, QuorumProvider};

use crate::TTL;
use crate::stores::Stores;

/// What a member does before it carries out attempts, which it is shown.
pub(crate) type Before = dyn Fn(&[Operation<'_, ErasedLease>]) + Send + Sync;

/// A member that does something first.
pub(crate) struct Watched {
    pub(crate) store: Arc<dyn LockProvider>,
    pub(crate) before: Arc<Before>,
    /// Also before batches without attempts.
    pub(crate) always: bool,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

impl StoreInfo for Watched {
    fn backend(&self) -> &'static str {
        self.store.backend()
    }

    fn location(&self) -> String {
        self.store.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
}

impl LockProvider for Watched {
    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
        if let Some(deadline) = request.deadline() {
            let after = request.end().saturating_since(deadline);
            assert!(after <= Duration::from_millis(100), "{after:?}");
        }
        self.store.acquire(request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        self.store.abandon(request);
    }

    fn renew(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        self.store.renew(lease, ttl, deadline)
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        self.store.part(request)
    }

    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        if self.always || batch.iter().any(|it| matches!(it, Operation::Acquire(_))) {
            (self.before)(batch);
        }
        self.store.batch(batch);
    }

    fn release(&self, lease: &mut ErasedLease, deadline: HostInstant) -> Result<Released, Error> {
        self.store.release(lease, deadline)
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store.watch_leases(verifier);
    }

    fn proof(&self, lease: &ErasedLease) -> Option<Proof> {
        self.store.proof(lease)
    }
}

/// Opens a quorum of the three members, which do this first.
pub(crate) fn watched(
    stores: &Stores,
    before: impl Fn(&[Operation<'_, ErasedLease>]) + Send + Sync + 'static,
) -> Box<dyn LockProvider> {
    watched_for(stores, false, before)
}

/// Opens such a quorum, also for batches without attempts.
pub(crate) fn watched_for(
    stores: &Stores,
    always: bool,
    before: impl Fn(&[Operation<'_, ErasedLease>]) + Send + Sync + 'static,
) -> Box<dyn LockProvider> {
    let before: Arc<Before> = Arc::new(before);
    let members = stores.members.iter().map(|store| {
        let (store, before) = (Arc::clone(store), Arc::clone(&before));
        let watched = Watched {
            store,
            before,
            always,
        };
        QuorumMember::from(Arc::new(watched) as Arc<dyn LockProvider>)
    });
    let quorum = QuorumProvider::open(members.collect(), "test", TTL, Arc::new(SystemClock));
    Box::new(quorum.expect("a majority is up"))
}
