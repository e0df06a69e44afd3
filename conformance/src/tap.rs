//! A provider between keeper and store that counts requests, and delays replies or keeps grants. It works on every
//! store, where the hooks of a fixture need the store's own means.

use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, ErasedLease, Error, Grant, HostInstant, LeaseVerifier,
    LockProvider, Operation, StoreInfo, Usage,
};

/// What happens to the replies to acquisitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// Each comes this much later.
    Late(Duration),
    /// A grant stays here, for [`Tap::take_grant`], and the keeper finds the name busy.
    KeepsGrant,
}

/// The provider, with a record of the requests.
#[derive(Debug)]
pub(crate) struct Tap {
    inner: Arc<dyn LockProvider>,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    fault: Fault,
    deadlines: Vec<Option<HostInstant>>,
    grant: Option<Grant<ErasedLease>>,
}

impl Tap {
    /// Makes a tap through which nothing travels together: a fault is of one operation.
    pub(crate) fn on(inner: Arc<dyn LockProvider>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            record: Mutex::default(),
        })
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what happens to the replies from now on.
    pub(crate) fn set(&self, fault: Fault) {
        self.record().fault = fault;
    }

    /// Returns the number of acquisitions.
    pub(crate) fn requests(&self) -> usize {
        self.record().deadlines.len()
    }

    /// Returns the deadlines of all acquisitions, in order.
    pub(crate) fn deadlines(&self) -> Vec<Option<HostInstant>> {
        self.record().deadlines.clone()
    }

    /// Returns the grant that was kept; see [`Fault::KeepsGrant`].
    pub(crate) fn take_grant(&self) -> Option<Grant<ErasedLease>> {
        self.record().grant.take()
    }
}

impl StoreInfo for Tap {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().with_batch(1)
    }

    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }
}

/// No case detaches a lease through a tap, or asks for its proof.
impl Backend for Tap {
    type Lease = ErasedLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
        let mut record = self.record();
        record.deadlines.push(request.deadline());
        let fault = record.fault;
        drop(record);
        let reply = self.inner.acquire(request);
        match fault {
            Fault::None => {}
            Fault::Late(by) => thread::sleep(by),
            Fault::KeepsGrant => {
                self.record().grant = reply?;
                return Ok(None);
            }
        }
        reply
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        self.inner.abandon(request);
    }

    /// Attempts come here as well, since the tap declares batches of one.
    fn batch(&self, batch: &mut [Operation<'_, ErasedLease>]) {
        for operation in batch {
            match operation {
                Operation::Acquire(it) => it.answer = Some(Backend::acquire(self, it.request)),
                other => self.inner.batch(slice::from_mut(other)),
            }
        }
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.inner.watch_leases(verifier);
    }
}
