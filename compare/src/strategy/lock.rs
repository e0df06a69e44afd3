//! The interface of a lock, as the scenarios use it.

use std::time::Duration;

use ::lockkeeper::{Capabilities, FencingToken, LeasePolicy, Usage};

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
    /// Asks for a lock that is not reentrant.
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
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error>;

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
pub(crate) trait Held {
    /// Returns the token by which the state can refuse a late write, if there is one.
    fn token(&self) -> Option<FencingToken> {
        None
    }

    /// Returns a function, for any thread, that returns whether the holder has been notified of a loss.
    fn lost_signal(&self) -> Box<dyn Fn() -> bool + Send> {
        Box::new(|| false)
    }

    /// Releases the lock.
    fn release(self: Box<Self>) -> Result<(), Error>;
}

/// Makes a held lock of what releases it. A recipe without tokens has nothing else.
pub(super) fn held(release: impl FnOnce() -> Result<(), Error> + 'static) -> Box<dyn Held> {
    Box::new(Releaser(Some(release)))
}

struct Releaser<F: FnOnce() -> Result<(), Error>>(Option<F>);

impl<F: FnOnce() -> Result<(), Error>> Held for Releaser<F> {
    fn release(mut self: Box<Self>) -> Result<(), Error> {
        self.0.take().map_or(Ok(()), |release| release())
    }
}

impl<F: FnOnce() -> Result<(), Error>> Drop for Releaser<F> {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            let _ = release();
        }
    }
}
