//! Locks from async code: every call that may block is made on a thread for blocking work.

use std::ops::Deref;

use lockkeeper::{AcquireOptions, CancelToken, Error, ErrorKind, LockGuard, LockKeeper};
use tokio::sync::oneshot;
use tokio::task::{JoinError, spawn_blocking};

/// Cancels a wait when the future that wants the lock is dropped.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Returns what a blocking closure returned. A panic in it goes on in the caller.
fn joined<T>(result: Result<Result<T, Error>, JoinError>) -> Result<T, Error> {
    result.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(ended) => {
            Err(Error::new(ErrorKind::Cancelled, "the runtime has ended").with_source(ended))
        }
    })
}

/// Acquires the lock, and runs blocking work under it on the same thread.
///
/// If the future is dropped, a wait for the lock ends at once. Work that has begun goes on to its end.
pub async fn with_lock<T: Send + 'static>(
    keeper: &LockKeeper,
    name: String,
    work: impl FnOnce(&LockGuard) -> T + Send + 'static,
) -> Result<T, Error> {
    let (keeper, cancel) = (keeper.clone(), CancelOnDrop(CancelToken::new()));
    let options = AcquireOptions::new().cancel(&cancel.0);
    joined(
        spawn_blocking(move || {
            let guard = keeper.lock_with(name, &options)?;
            Ok(work(&guard))
        })
        .await,
    )
}

/// A lock that async code holds, with the methods of its guard. Its drop blocks no thread of the runtime.
///
/// In a task, call neither `renew` nor `commit_proof` nor `commit_in`: they block the thread.
pub struct AsyncGuard(Option<LockGuard>);

impl AsyncGuard {
    /// Acquires the lock. If the future is dropped, the wait ends at once.
    pub async fn lock(keeper: &LockKeeper, name: String) -> Result<Self, Error> {
        let (keeper, cancel) = (keeper.clone(), CancelOnDrop(CancelToken::new()));
        let options = AcquireOptions::new().cancel(&cancel.0);
        let acquire = move || {
            keeper
                .lock_with(name, &options)
                .map(|guard| Self(Some(guard)))
        };
        joined(spawn_blocking(acquire).await)
    }

    /// Waits until the lock is lost. Each call registers a callback for the guard's life: in a loop, keep one
    /// pinned future of it.
    pub async fn lost(&self) {
        let (sender, receiver) = oneshot::channel();
        self.lost_signal().on_lost(move || {
            let _ = sender.send(());
        });
        if receiver.await.is_err() {
            // The lock was released, and cannot be lost any more.
            std::future::pending().await
        }
    }
}

impl Deref for AsyncGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        self.0.as_ref().expect("only the drop takes the guard")
    }
}

impl Drop for AsyncGuard {
    fn drop(&mut self) {
        let guard = self.0.take();
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(guard))),
            Err(_) => drop(guard), // this thread may block
        }
    }
}
