//! The interface of a lock, as the scenarios use it.

use std::time::Duration;

use ::lockkeeper::backend::Capabilities;
use ::lockkeeper::{FencingToken, LeasePolicy, LostSignal, Usage};

use crate::error::Error;

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockRequest {
    /// The lease's ttl, and whether the lease is renewed.
    pub(crate) lease: LeasePolicy,
    /// How long to wait for the lock.
    pub(crate) wait: Duration,
    /// Whether a thread that holds the lock is to get it again, if the strategy can do that.
    pub(crate) reentrant: bool,
}

impl LockRequest {
    /// Requests a lock that is not reentrant.
    pub(crate) fn new(lease: LeasePolicy, wait: Duration) -> Self {
        Self {
            lease,
            wait,
            reentrant: false,
        }
    }

    /// Makes a single attempt of it.
    pub(crate) fn without_wait(self) -> Self {
        Self {
            wait: Duration::ZERO,
            ..self
        }
    }
}

/// A way of locking, as one program uses it with all its threads.
pub(crate) trait Lock: Send + Sync {
    /// Acquires the lock; `None` if it was busy until the end of the wait.
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error>;

    /// Returns what the lock has cost its store so far, where no server can count it.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Returns the shortest ttl that a lease can have.
    fn min_ttl(&self) -> Duration {
        Capabilities::MIN_TTL
    }

    /// Tells whether a lease can expire while its holder lives.
    fn has_fixed_lease(&self) -> bool {
        true
    }
}

/// A lock that is held. Dropping it releases it.
pub(crate) struct Held {
    /// The token by which the state can refuse a late write, if there is one.
    pub(crate) token: Option<FencingToken>,
    /// Shows when the lock is lost, if the holder is notified of that.
    pub(crate) lost: Option<LostSignal>,
    release: Option<Box<dyn FnOnce() -> Result<(), Error>>>,
}

impl Held {
    /// Makes a held lock of what releases it. A recipe without tokens has nothing else.
    pub(crate) fn new(release: impl FnOnce() -> Result<(), Error> + 'static) -> Self {
        Self {
            token: None,
            lost: None,
            release: Some(Box::new(release)),
        }
    }

    pub(crate) fn release(mut self) -> Result<(), Error> {
        self.release.take().map_or(Ok(()), |release| release())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            let _ = release();
        }
    }
}
