//! Members that do something before they carry out attempts.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Clock, ErasedLease, Error, ErrorKind, Grant,
    LeaseVerifier, LockProvider, Operation, StoreInfo, SystemClock,
};
use lockkeeper_quorum::{QuorumMember, QuorumProvider};

use crate::TTL;
use crate::stores::{StoppedClock, Stores};

/// What a member does before it carries out attempts, which it is shown: none before an operator's question.
pub(crate) type Before = dyn Fn(&[Operation<'_, ErasedLease>]) + Send + Sync;

/// A member that does something first.
pub(crate) struct Watched {
    pub(crate) store: Arc<dyn LockProvider>,
    pub(crate) before: Arc<Before>,
    /// Also before batches without attempts.
    pub(crate) always: bool,
    /// Whether the member refuses all that a batch asks for.
    pub(crate) refuses: bool,
    /// A clock that the member moves to the end of each wait, which then fails: its server is cut off by then.
    pub(crate) cut_off: Option<Arc<StoppedClock>>,
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

    fn admin(&self) -> Option<&dyn Admin> {
        (self.before)(&[]);
        self.store.admin()
    }
}

/// A quorum calls no other verbs of its members.
impl Backend for Watched {
    type Lease = ErasedLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
        if let Some(deadline) = request.deadline() {
            let after = request.end().saturating_since(deadline);
            assert!(after <= Duration::from_millis(100), "{after:?}");
            if let Some(clock) = &self.cut_off {
                clock.advance(deadline.saturating_since(clock.now()));
                return Err(Error::unreachable("the server was cut off"));
            }
        }
        self.store.acquire(request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        self.store.abandon(request);
    }

    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        if self.always || batch.iter().any(|it| matches!(it, Operation::Acquire(_))) {
            (self.before)(batch);
        }
        if self.refuses {
            return batch.iter_mut().for_each(refuse);
        }
        self.store.batch(batch);
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store.watch_leases(verifier);
    }
}

fn refuse(operation: &mut Operation<'_, ErasedLease>) {
    let error = Error::new(ErrorKind::PermissionDenied, "this user may not lock");
    match operation {
        Operation::Acquire(it) => it.answer = Some(Err(error)),
        Operation::Renew(it) => it.answer = Some(Err(error)),
        Operation::Release(it) => it.answer = Some(Err(error)),
    }
}

/// Opens a quorum of the three members, which do this first.
pub(crate) fn watched(
    stores: &Stores,
    before: impl Fn(&[Operation<'_, ErasedLease>]) + Send + Sync + 'static,
) -> Box<dyn LockProvider> {
    watched_for(stores, Arc::new(SystemClock), false, before)
}

/// Opens such a quorum with a clock of its own, also for batches without attempts.
pub(crate) fn watched_for(
    stores: &Stores,
    clock: Arc<dyn Clock>,
    always: bool,
    before: impl Fn(&[Operation<'_, ErasedLease>]) + Send + Sync + 'static,
) -> Box<dyn LockProvider> {
    let before: Arc<Before> = Arc::new(before);
    let watch = |store: &Arc<dyn LockProvider>| Watched {
        store: Arc::clone(store),
        before: Arc::clone(&before),
        always,
        refuses: false,
        cut_off: None,
    };
    open(stores, clock, watch)
}

/// Opens a quorum of members that are made of the three stores.
pub(crate) fn open(
    stores: &Stores,
    clock: Arc<dyn Clock>,
    watch: impl Fn(&Arc<dyn LockProvider>) -> Watched,
) -> Box<dyn LockProvider> {
    let members = stores.members.iter().map(|store| {
        let watched: Arc<dyn LockProvider> = Arc::new(watch(store));
        QuorumMember::from(watched)
    });
    let quorum = QuorumProvider::open(members.collect(), "test", TTL, clock);
    Box::new(quorum.expect("a majority is up"))
}
