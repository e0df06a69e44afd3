//! A provider between keeper and store that counts requests and injects faults. It works on every store,
//! where the hooks of a fixture need the store's own means.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Clock, ErasedLease, Error, ErrorKind, Grant,
    HostInstant, LeaseVerifier, LockName, LockProvider, Owner, Proof, Released, Renewal, StoreInfo,
    SystemClock, Usage,
};

/// What happens to the calls that come through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Fault {
    #[default]
    None,
    /// No call reaches the store; each fails with an error of this kind.
    Fails(ErrorKind),
    /// Acquisitions get no reply: each fails as unavailable at its deadline, a single attempt after
    /// this long.
    NoReply(Duration),
    /// Renewals panic.
    RenewalPanics,
    /// Every reply comes this much later.
    Late(Duration),
    /// Renewals of this name get no reply until their deadline.
    Hangs(&'static str),
    /// Releases stay here until the fault ends, at most until their deadline, and get no reply then.
    HoldsReleases,
    /// A grant stays here, for [`Tap::take_grant`], and the keeper finds the name busy.
    KeepsGrant,
}

/// The provider, with a record of the requests.
#[derive(Debug)]
pub(crate) struct Tap {
    inner: Arc<dyn LockProvider>,
    /// How many operations it takes in one call.
    batch: usize,
    record: Mutex<Record>,
    /// Notified when the fault changes.
    fault_changed: Condvar,
}

#[derive(Debug, Default)]
struct Record {
    fault: Fault,
    owners: Vec<Owner>,
    deadlines: Vec<Option<HostInstant>>,
    in_progress: HashSet<LockName>,
    overlaps: usize,
    renewals: usize,
    releases: Vec<ThreadId>,
    grant: Option<Grant<ErasedLease>>,
}

impl Tap {
    /// Makes a tap through which nothing travels together: a fault is of one operation.
    pub(crate) fn on(inner: Arc<dyn LockProvider>) -> Arc<Self> {
        Self::with_batch(inner, 1)
    }

    /// Makes a tap that takes several operations in one call, whether the store does or not.
    pub(crate) fn with_batch(inner: Arc<dyn LockProvider>, batch: usize) -> Arc<Self> {
        Arc::new(Self {
            inner,
            batch,
            record: Mutex::default(),
            fault_changed: Condvar::new(),
        })
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what happens to the calls from now on.
    pub(crate) fn set(&self, fault: Fault) {
        self.record().fault = fault;
        self.fault_changed.notify_all();
    }

    /// Returns the owners of all acquisitions, in order.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        self.record().owners.clone()
    }

    /// Returns the deadlines of all acquisitions, in order.
    pub(crate) fn deadlines(&self) -> Vec<Option<HostInstant>> {
        self.record().deadlines.clone()
    }

    /// Returns how often a name was requested during another request for it.
    pub(crate) fn overlaps(&self) -> usize {
        self.record().overlaps
    }

    /// Returns the number of renewals.
    pub(crate) fn renewals(&self) -> usize {
        self.record().renewals
    }

    /// Returns the threads that asked for releases, in order.
    pub(crate) fn releases(&self) -> Vec<ThreadId> {
        self.record().releases.clone()
    }

    /// Returns the grant that was kept; see [`Fault::KeepsGrant`].
    pub(crate) fn take_grant(&self) -> Option<Grant<ErasedLease>> {
        self.record().grant.take()
    }

    /// Passes a call on to the store, as far as the fault permits.
    fn pass<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let fault = self.record().fault;
        if let Fault::Fails(kind) = fault {
            return Err(injected(kind));
        }
        let reply = call();
        if let Fault::Late(by) = fault {
            thread::sleep(by);
        }
        reply
    }
}

fn injected(kind: ErrorKind) -> Error {
    Error::new(kind, "the suite injects this fault")
}

impl StoreInfo for Tap {
    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().with_batch(self.batch)
    }

    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }
}

impl Backend for Tap {
    type Lease = TappedLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<TappedLease>>, Error> {
        let name = request.name().clone();
        let mut record = self.record();
        let fault = record.fault;
        record.owners.push(request.owner());
        record.deadlines.push(request.deadline());
        drop(record);
        if let Fault::NoReply(attempt) = fault {
            let deadline = request.deadline().unwrap_or(request.now() + attempt);
            thread::sleep(deadline.saturating_since(request.now()));
            return Err(injected(ErrorKind::Unavailable));
        }
        let reply = self.pass(|| {
            let is_first = self.record().in_progress.insert(name.clone());
            self.record().overlaps += usize::from(!is_first);
            let reply = self.inner.acquire(request);
            self.record().in_progress.remove(&name);
            reply
        })?;
        if fault == Fault::KeepsGrant {
            self.record().grant = reply;
            return Ok(None);
        }
        Ok(reply.map(|grant| grant.map(|inner| TappedLease { inner, name })))
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        self.inner.abandon(request);
    }

    fn renew(
        &self,
        lease: &mut TappedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        let mut record = self.record();
        record.renewals += 1;
        let fault = record.fault;
        drop(record);
        match fault {
            // Unlike `panic!`, this prints nothing.
            Fault::RenewalPanics => resume_unwind(Box::new("the suite injects this panic")),
            Fault::Hangs(name) if lease.name.as_str() == name => {
                thread::sleep(deadline.saturating_since(SystemClock.now()));
                Err(injected(ErrorKind::Unknown))
            }
            _ => self.pass(|| self.inner.renew(&mut lease.inner, ttl, deadline)),
        }
    }

    fn release(&self, lease: &mut TappedLease, deadline: HostInstant) -> Result<Released, Error> {
        let mut record = self.record();
        record.releases.push(thread::current().id());
        while record.fault == Fault::HoldsReleases {
            let left = deadline.saturating_since(SystemClock.now());
            if left.is_zero() {
                return Err(injected(ErrorKind::Unknown));
            }
            let waited = self.fault_changed.wait_timeout(record, left);
            record = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(record);
        self.pass(|| self.inner.release(&mut lease.inner, deadline))
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.inner.watch_leases(verifier);
    }

    fn proof(&self, lease: &TappedLease) -> Option<Proof> {
        self.inner.proof(&lease.inner)
    }
}

#[derive(Debug)]
pub(crate) struct TappedLease {
    inner: ErasedLease,
    name: LockName,
}
