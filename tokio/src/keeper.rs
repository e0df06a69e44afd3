//! The keeper: acquisitions as futures.

use std::time::Duration;

use lockkeeper_core::{
    AcquireOptions, AsLockName, CancelToken, Error, LockGuard, LockKeeper, LockName, RunLocked,
};

use crate::blocking;
use crate::guard::AsyncGuard;

/// Acquires locks for async code. Clones are the same keeper.
///
/// A dropped future ends its wait at once, and leaves nothing in the store. A grant that comes at that moment is
/// released. Outside of a runtime of tokio, the futures panic.
///
/// Keep a clone until all guards have ended. The drop of the last one blocks until the releases that are under way are
/// done, for some 2 s at most.
#[derive(Clone, Debug)]
pub struct AsyncKeeper {
    keeper: LockKeeper,
}

/// Cancels the wait when the future that wants the lock is dropped.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl AsyncKeeper {
    /// Makes an async keeper of a keeper.
    pub fn new(keeper: LockKeeper) -> Self {
        Self { keeper }
    }

    /// Returns the keeper, for blocking code and for calls that never block.
    pub fn keeper(&self) -> &LockKeeper {
        &self.keeper
    }

    /// Acquires the lock, and waits for it at most the keeper's default wait.
    ///
    /// # Errors
    /// As [`LockKeeper::lock`]. [`ErrorKind::Cancelled`](lockkeeper_core::ErrorKind::Cancelled) if the runtime ends.
    pub async fn lock(&self, name: impl AsLockName) -> Result<AsyncGuard, Error> {
        self.lock_with(name, &AcquireOptions::new()).await
    }

    /// Acquires the lock with `options`. A lock that stays busy is an error.
    ///
    /// # Errors
    /// As [`LockKeeper::lock_with`], and as [`lock`](Self::lock).
    pub async fn lock_with(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<AsyncGuard, Error> {
        let call = |keeper: &LockKeeper, name, options: &_| {
            Ok(AsyncGuard::new(keeper.lock_with(name, options)?))
        };
        self.blocking(&name, options, call).await
    }

    /// Acquires the lock if it is free, in one attempt. Returns `None` if it is held.
    ///
    /// # Errors
    /// As [`LockKeeper::try_lock`], and as [`lock`](Self::lock).
    pub async fn try_lock(&self, name: impl AsLockName) -> Result<Option<AsyncGuard>, Error> {
        let options = AcquireOptions::new().wait(Duration::ZERO);
        self.acquire(name, &options).await
    }

    /// Acquires the lock with `options`. Returns `None` if another holder had the lock until the end of the wait.
    ///
    /// # Errors
    /// As [`LockKeeper::acquire`], and as [`lock`](Self::lock).
    pub async fn acquire(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<Option<AsyncGuard>, Error> {
        let call = |keeper: &LockKeeper, name, options: &_| {
            let guard = keeper.acquire(name, options)?;
            Ok(guard.map(AsyncGuard::new))
        };
        self.blocking(&name, options, call).await
    }

    /// Acquires the lock, and runs blocking work under it on the same thread. Then it releases the lock. The result has
    /// the value of `work`, whatever the release found.
    ///
    /// If the future is dropped, a wait ends at once. Work that has begun goes on to its end. A panic of the work goes
    /// on in the caller.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub async fn run_locked<T: Send + 'static>(
        &self,
        name: impl AsLockName,
        work: impl FnOnce(&LockGuard) -> T + Send + 'static,
    ) -> Result<RunLocked<T>, Error> {
        let call = |keeper: &LockKeeper, name, options: &_| {
            let guard = keeper.lock_with(name, options)?;
            let value = work(&guard);
            let released = guard.release();
            Ok(RunLocked { value, released })
        };
        self.blocking(&name, &AcquireOptions::new(), call).await
    }

    /// Makes a call that acquires on a thread for blocking work. Its wait ends when this future is dropped, or when the
    /// options' own token is cancelled.
    async fn blocking<T: Send + 'static>(
        &self,
        name: &impl AsLockName,
        options: &AcquireOptions,
        call: impl FnOnce(&LockKeeper, LockName, &AcquireOptions) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let name = name.as_lock_name()?.into_owned();
        let wait = CancelOnDrop(CancelToken::new());
        let _chained = options.cancel_token().map(|token| {
            let wait = wait.0.clone();
            token.on_cancel(move || wait.cancel())
        });
        let options = options.clone().cancel(&wait.0);
        let keeper = self.keeper.clone();
        blocking::run(move || call(&keeper, name, &options)).await
    }
}

impl From<LockKeeper> for AsyncKeeper {
    fn from(keeper: LockKeeper) -> Self {
        Self::new(keeper)
    }
}
