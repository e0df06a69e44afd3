//! The guard, whose drop blocks no thread of the runtime.

use std::fmt;
use std::future;
use std::sync::OnceLock;
use std::time::Duration;

use lockkeeper_core::{
    Capability, Error, FencingToken, LockGuard, LockKeeper, LockName, LostSignal, Mode, Released,
};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::blocking;

/// A lock that async code holds. Dropping it releases the lock, and blocks no thread of the runtime.
///
/// A future may hold it over an `await`: the keeper's threads renew its lease. None of its methods blocks. For those of
/// [`LockGuard`] that block, such as `commit_proof`, take that guard out with [`into_inner`](Self::into_inner) on a
/// thread for blocking work.
pub struct AsyncGuard {
    /// `None` only while it is dropped.
    guard: Option<LockGuard>,
    signal: LostSignal,
    /// Made by the first call of [`lost`](Self::lost).
    lost: OnceLock<watch::Receiver<bool>>,
    may_wait_for_processes: bool,
}

impl AsyncGuard {
    pub(crate) fn new(keeper: &LockKeeper, guard: LockGuard) -> Self {
        // The drop waits for no server. But a store that the processes of a host share, as a SQLite file, does the
        // release at once, and may wait for another process that writes.
        let store = keeper.capabilities();
        let is_shared_in_host =
            store.has(Capability::CrossProcess) && !store.has(Capability::CrossHost);
        Self {
            signal: guard.lost_signal(),
            guard: Some(guard),
            lost: OnceLock::new(),
            may_wait_for_processes: is_shared_in_host,
        }
    }

    #[expect(clippy::expect_used, reason = "only the end of the guard takes it")]
    fn guard(&self) -> &LockGuard {
        self.guard
            .as_ref()
            .expect("the guard is there until it ends")
    }

    /// Returns the name that is held.
    pub fn name(&self) -> &LockName {
        self.guard().name()
    }

    /// Returns the mode in which the name is held.
    pub fn mode(&self) -> Mode {
        self.guard().mode()
    }

    /// Returns the fencing token of this grant: see [`LockGuard::token`].
    pub fn token(&self) -> FencingToken {
        self.guard().token()
    }

    /// Returns whether the lock is provably held now. Does not contact the store.
    pub fn is_held(&self) -> bool {
        self.guard().is_held()
    }

    /// Returns an error if the lock is lost. Does not contact the store.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](lockkeeper_core::ErrorKind::Lost).
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guard().ensure_held()
    }

    /// Returns how long the lock stays held without another renewal; zero if it is lost.
    pub fn remaining(&self) -> Duration {
        self.guard().remaining()
    }

    /// Returns the signal of this guard's loss. Its [`wait`](LostSignal::wait) blocks.
    pub fn lost_signal(&self) -> LostSignal {
        self.signal.clone()
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
        self.signal.on_lost(move || {
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

    /// Returns the guard of blocking code. Its drop, and some of its methods, may block.
    #[expect(clippy::expect_used, reason = "only the end of the guard takes it")]
    pub fn into_inner(mut self) -> LockGuard {
        self.guard.take().expect("the guard is there until it ends")
    }
}

impl Drop for AsyncGuard {
    fn drop(&mut self) {
        let guard = self.guard.take();
        match Handle::try_current() {
            Ok(_) if guard.is_some() && self.may_wait_for_processes => {
                spawn_blocking(move || drop(guard));
            }
            // This thread is none of a runtime, or the drop does not wait.
            _ => drop(guard),
        }
    }
}

impl fmt::Debug for AsyncGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.guard, f)
    }
}
