//! The guard of async code. A future waits for its loss.

use std::fmt;
use std::future;
use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_core::{Error, FencingToken, LockGuard, LockName, LostSignal, Mode, Released};
use tokio::sync::watch;

use crate::blocking;

/// A lock that async code holds. Dropping it releases the lock, and waits for no server.
///
/// A future may hold it over an `await`: the keeper's threads renew its lease. None of its methods blocks. For those of
/// [`LockGuard`] that block, such as `commit_proof`, take that guard out with [`into_inner`](Self::into_inner) on a
/// thread for blocking work.
pub struct AsyncGuard {
    guard: LockGuard,
    /// Made by the first call of [`lost`](Self::lost).
    lost: OnceLock<watch::Receiver<bool>>,
}

impl AsyncGuard {
    pub(crate) fn new(guard: LockGuard) -> Self {
        Self {
            guard,
            lost: OnceLock::new(),
        }
    }

    /// Returns the name that is held.
    pub fn name(&self) -> &LockName {
        self.guard.name()
    }

    /// Returns the mode in which the name is held.
    pub fn mode(&self) -> Mode {
        self.guard.mode()
    }

    /// Returns the fencing token of this grant: see [`LockGuard::token`].
    pub fn token(&self) -> FencingToken {
        self.guard.token()
    }

    /// Returns whether the lock is provably held now. Does not contact the store.
    pub fn is_held(&self) -> bool {
        self.guard.is_held()
    }

    /// Returns an error if the lock is lost. Does not contact the store.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](lockkeeper_core::ErrorKind::Lost).
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guard.ensure_held()
    }

    /// Returns how long the lock stays held without another renewal; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Returns the signal of this guard's loss. Its [`wait`](LostSignal::wait) blocks.
    pub fn lost_signal(&self) -> LostSignal {
        self.guard.lost_signal()
    }

    /// Waits until the lock is lost. A lock that is not lost leaves the future pending.
    ///
    /// In a `select!` it ends work that must not go on without the lock. What has no `await`, it does not end: call
    /// [`ensure_held`](Self::ensure_held) before each such step.
    pub async fn lost(&self) {
        let mut lost = self.lost.get_or_init(|| self.register()).clone();
        // The sender is dropped without a loss only when the guard ends, which this future keeps from happening.
        if lost.wait_for(|lost| *lost).await.is_err() {
            future::pending::<()>().await;
        }
    }

    fn register(&self) -> watch::Receiver<bool> {
        let (sender, receiver) = watch::channel(false);
        self.guard.lost_signal().on_lost(move || {
            sender.send_replace(true);
        });
        receiver
    }

    /// Releases the lock, and returns whether it was still held. A dropped future lets the release go on.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    pub async fn release(self) -> Result<Released, Error> {
        let guard = self.into_inner();
        blocking::run(move || guard.release()).await
    }

    /// Returns the guard for blocking code. Some of its methods block.
    pub fn into_inner(self) -> LockGuard {
        self.guard
    }
}

impl fmt::Debug for AsyncGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.guard, f)
    }
}
