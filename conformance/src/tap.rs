//! A provider between keeper and store that counts and disturbs. It works on every store, where
//! the hooks of a fixture disturb the store itself.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Backend, Capabilities, Clock, ErasedLease, Error, ErrorKind, Grant,
    HostInstant, LockName, LockProvider, Owner, Proof, Released, Renewal, SystemClock, Usage,
};

/// What happens to the calls that come through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    None,
    /// None reaches the store; each ends with an error of this kind.
    Fails(ErrorKind),
    /// No request for a lock is answered: each fails as unavailable at its deadline, a single
    /// attempt after this long.
    Silent(Duration),
    /// Renewals panic.
    RenewalPanics,
    /// Every answer comes this much later.
    Late(Duration),
    /// Renewals of this name stay without an answer until their deadline.
    Hangs(&'static str),
}

/// What came through, and what is to happen to it.
#[derive(Debug)]
pub(crate) struct Tap {
    trouble: Mutex<Trouble>,
    owners: Mutex<Vec<Owner>>,
    waits: Mutex<Vec<Option<HostInstant>>>,
    asking: Mutex<HashSet<LockName>>,
    overlaps: AtomicUsize,
    renewals: AtomicUsize,
}

impl Tap {
    pub(crate) fn on(inner: Arc<dyn LockProvider>) -> (Arc<dyn LockProvider>, Arc<Self>) {
        let tap = Arc::new(Self {
            trouble: Mutex::new(Trouble::None),
            owners: Mutex::default(),
            waits: Mutex::default(),
            asking: Mutex::default(),
            overlaps: AtomicUsize::new(0),
            renewals: AtomicUsize::new(0),
        });
        let provider = Arc::new(Tapped {
            inner,
            tap: Arc::clone(&tap),
        });
        (provider, tap)
    }

    /// From now on.
    pub(crate) fn set(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Who asked, in order.
    pub(crate) fn owners(&self) -> Vec<Owner> {
        let owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.clone()
    }

    /// Until when those who asked would wait, in order.
    pub(crate) fn waits(&self) -> Vec<Option<HostInstant>> {
        let waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.clone()
    }

    /// How often a name was asked for while it was being asked for already.
    pub(crate) fn overlaps(&self) -> usize {
        self.overlaps.load(Ordering::SeqCst)
    }

    /// How many renewals there were.
    pub(crate) fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    fn trouble(&self) -> Trouble {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self) -> Result<(), Error> {
        match self.trouble() {
            Trouble::Fails(kind) => Err(Error::new(kind, "the suite disturbs this call")),
            _ => Ok(()),
        }
    }

    fn dawdle(&self) {
        if let Trouble::Late(time) = self.trouble() {
            thread::sleep(time);
        }
    }
}

#[derive(Debug)]
struct Tapped {
    inner: Arc<dyn LockProvider>,
    tap: Arc<Tap>,
}

impl Backend for Tapped {
    type Lease = TappedLease;

    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    /// As the store's, but that leases are renewed one by one: a batch could not be disturbed.
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities().with_renew_batch(1)
    }

    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<TappedLease>>, Error> {
        let tap = &self.tap;
        let known = PoisonError::into_inner;
        tap.owners
            .lock()
            .unwrap_or_else(known)
            .push(request.owner());
        let known = PoisonError::into_inner;
        tap.waits
            .lock()
            .unwrap_or_else(known)
            .push(request.deadline());
        tap.pass()?;
        if let Trouble::Silent(attempt) = tap.trouble() {
            let deadline = request.deadline().unwrap_or(request.now() + attempt);
            thread::sleep(deadline.saturating_since(request.now()));
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the suite disturbs this call",
            ));
        }
        let asking = |change: &dyn Fn(&mut HashSet<LockName>) -> bool| {
            change(&mut tap.asking.lock().unwrap_or_else(PoisonError::into_inner))
        };
        if !asking(&|names| names.insert(request.name().clone())) {
            tap.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        let answer = self.inner.acquire(request);
        asking(&|names| names.remove(request.name()));
        tap.dawdle();
        let tapped = |inner| TappedLease {
            inner,
            name: request.name().clone(),
        };
        Ok(answer?.map(|grant| grant.map(tapped)))
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
        self.tap.renewals.fetch_add(1, Ordering::SeqCst);
        match self.tap.trouble() {
            // Without the message of a panic that nobody planned.
            Trouble::RenewalPanics => resume_unwind(Box::new("the suite disturbs this renewal")),
            Trouble::Hangs(name) if lease.name.as_str() == name => {
                thread::sleep(deadline.saturating_since(SystemClock.now()));
                Err(Error::new(
                    ErrorKind::Unknown,
                    "the suite disturbs this renewal",
                ))
            }
            _ => {
                self.tap.pass()?;
                let answer = self.inner.renew(&mut lease.inner, ttl, deadline);
                self.tap.dawdle();
                answer
            }
        }
    }

    fn release(&self, lease: &mut TappedLease, deadline: HostInstant) -> Result<Released, Error> {
        self.tap.pass()?;
        self.inner.release(&mut lease.inner, deadline)
    }

    fn proof(&self, lease: &TappedLease) -> Option<Proof> {
        self.inner.proof(&lease.inner)
    }
}

#[derive(Debug)]
struct TappedLease {
    inner: ErasedLease,
    name: LockName,
}

/// What the last acquisition was granted.
type Taken = Arc<Mutex<Option<Grant<ErasedLease>>>>;

/// Takes leases away from the engine, for cases about the provider alone.
#[derive(Debug)]
pub(crate) struct Thief {
    inner: Arc<dyn LockProvider>,
    taken: Taken,
}

impl Thief {
    /// The provider to give to a keeper; what an acquisition was granted is then in the slot, and
    /// the engine takes the name for busy.
    pub(crate) fn on(inner: Arc<dyn LockProvider>) -> (Arc<dyn LockProvider>, Taken) {
        let taken = Arc::new(Mutex::new(None));
        let thief = Arc::new(Self {
            inner,
            taken: Arc::clone(&taken),
        });
        (thief, taken)
    }
}

impl Backend for Thief {
    type Lease = ErasedLease;

    fn backend(&self) -> &'static str {
        self.inner.backend()
    }

    fn location(&self) -> String {
        self.inner.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<ErasedLease>>, Error> {
        let grant = self.inner.acquire(request)?;
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = grant;
        Ok(None)
    }

    fn renew(
        &self,
        lease: &mut ErasedLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        self.inner.renew(lease, ttl, deadline)
    }

    fn release(&self, lease: &mut ErasedLease, deadline: HostInstant) -> Result<Released, Error> {
        self.inner.release(lease, deadline)
    }
}
