//! The interface of a lock, as the scenarios use it.

use std::time::{Duration, Instant};

use ::lockkeeper::backend::Capabilities;
use ::lockkeeper::{FencingToken, LeasePolicy, LostSignal, Mode, Usage};

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
    /// Beside which other holders it is to be granted, if the strategy knows more than one kind.
    pub(crate) mode: Mode,
}

impl LockRequest {
    /// Requests a lock that is exclusive and not reentrant.
    pub(crate) fn new(lease: LeasePolicy, wait: Duration) -> Self {
        Self {
            lease,
            wait,
            reentrant: false,
            mode: Mode::Exclusive,
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

    /// Acquires all these locks or none; `None` if one was busy until the end of the wait, which is that
    /// for all together. The names are sorted, so that no two callers wait for each other.
    fn acquire_all(
        &self,
        names: &[String],
        request: LockRequest,
    ) -> Result<Option<Vec<Held>>, Error> {
        let started = Instant::now();
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            let request = LockRequest {
                wait: request.wait.saturating_sub(started.elapsed()),
                ..request
            };
            match self.acquire(name, request)? {
                Some(held) => all.push(held),
                None => {
                    release_all(all)?;
                    return Ok(None);
                }
            }
        }
        Ok(Some(all))
    }

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

/// Releases the locks, the last one first.
pub(super) fn release_all(mut all: Vec<Held>) -> Result<(), Error> {
    while let Some(held) = all.pop() {
        held.release()?;
    }
    Ok(())
}
