//! What the tests here have in common: bounded waiting, and leases without an engine around them.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{
    AcquireOptions, AcquireRequest, Backend, Capabilities, Clock, ErasedLease, Error, ErrorKind,
    Grant, HostInstant, LeasePolicy, LockKeeper, LockProvider, ManualClock, Released, Renewal,
};

/// Waits until `condition` holds; far longer than it can take.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The provider's last answer.
type Seen = Option<Result<Option<Grant<ErasedLease>>, Error>>;

/// A provider in between that keeps the leases for the test: the engine sees an error instead.
#[derive(Debug)]
pub(crate) struct Spy {
    inner: Arc<dyn LockProvider>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug)]
struct Between {
    inner: Arc<dyn LockProvider>,
    seen: Arc<Mutex<Seen>>,
}

impl Backend for Between {
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
        *self.seen.lock().unwrap() = Some(self.inner.acquire(request));
        Err(Error::new(ErrorKind::Unavailable, "kept by the test"))
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

/// A lease without a guard.
#[derive(Debug)]
pub(crate) struct Raw {
    provider: Arc<dyn LockProvider>,
    grant: Grant<ErasedLease>,
}

impl Raw {
    pub(crate) fn epoch(&self) -> u64 {
        self.grant.epoch
    }

    pub(crate) fn is_renewed(&mut self, clock: &dyn Clock) -> bool {
        let ttl = Duration::from_secs(10);
        let answer = self
            .provider
            .renew(&mut self.grant.lease, ttl, clock.now() + ttl);
        answer.unwrap() == Renewal::Renewed
    }

    pub(crate) fn release(&mut self) -> Released {
        self.provider
            .release(&mut self.grant.lease, HostInstant::NEVER)
            .unwrap()
    }
}

impl Spy {
    pub(crate) fn new(inner: Arc<dyn LockProvider>) -> Self {
        Self {
            inner,
            seen: Arc::default(),
        }
    }

    pub(crate) fn provider(&self) -> Arc<dyn LockProvider> {
        Arc::new(Between {
            inner: Arc::clone(&self.inner),
            seen: Arc::clone(&self.seen),
        })
    }

    pub(crate) fn ask(
        &self,
        keeper: &LockKeeper,
        name: &str,
        options: &AcquireOptions,
    ) -> Result<Option<Raw>, Error> {
        let _ = keeper.acquire(name, options);
        let seen = self
            .seen
            .lock()
            .unwrap()
            .take()
            .expect("the provider was asked");
        let provider = &self.inner;
        let raw = |grant| Raw {
            provider: Arc::clone(provider),
            grant,
        };
        seen.map(|grant| grant.map(raw))
    }

    pub(crate) fn try_acquire(&self, keeper: &LockKeeper, name: &str) -> Option<Raw> {
        self.ask(keeper, name, &AcquireOptions::new().wait(Duration::ZERO))
            .unwrap()
    }

    pub(crate) fn acquire(&self, keeper: &LockKeeper, name: &str) -> Raw {
        self.try_acquire(keeper, name).expect("the name is free")
    }
}

/// Tests that an expired lease is not renewed, and that its late release keeps the next lease.
/// `late_release` is what the store answers if the name was not granted again.
pub(crate) fn expired_lease_is_refused(
    open: impl FnOnce(Arc<dyn Clock>) -> Arc<dyn LockProvider>,
    late_release: Released,
) {
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let spy = Spy::new(open(Arc::clone(&shared)));
    let ttl = Duration::from_secs(10);
    let keeper = LockKeeper::builder(spy.provider())
        .clock(Arc::clone(&shared))
        .lease(LeasePolicy::Fixed { ttl })
        .build()
        .unwrap();
    let mut first = spy.acquire(&keeper, "seat");
    clock.advance(ttl - Duration::from_nanos(1));
    assert!(spy.try_acquire(&keeper, "seat").is_none());
    assert!(first.is_renewed(&*shared));
    clock.advance(ttl);
    assert!(
        !first.is_renewed(&*shared),
        "the name was not granted again"
    );

    let mut second = spy.acquire(&keeper, "seat");
    assert!(second.epoch() > first.epoch());
    assert!(!first.is_renewed(&*shared), "the name was granted again");
    assert_eq!(first.release(), Released::AlreadyLost);
    assert!(second.is_renewed(&*shared));
    clock.advance(ttl);
    assert_eq!(second.release(), late_release);
    assert_eq!(spy.acquire(&keeper, "seat").release(), Released::Done);
}
