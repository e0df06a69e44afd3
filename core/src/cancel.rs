//! Ending a wait for a lock from another thread.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::lock;

type Callback = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    next_id: AtomicU64,
    callbacks: Mutex<Vec<(u64, Callback)>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cancelled: {:?}", self.cancelled)
    }
}

/// Ends every acquisition that has a clone of it, now and later. They return
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) and leave nothing behind in the store.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::CancelToken;
///
/// let stop = CancelToken::new();
/// let also = stop.clone(); // the same token
/// also.cancel();
/// assert!(stop.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all waiters. For good: a token cannot be un-cancelled.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let callbacks: Vec<_> = lock(&self.inner.callbacks).clone();
        for (_, callback) in callbacks {
            callback();
        }
    }

    /// Returns whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::SeqCst)
    }

    /// Calls `wake` on [`cancel`](Self::cancel) until the registration is dropped; at once if the
    /// token is cancelled already. For backends.
    ///
    /// `wake` must not block. It may run once more after the registration was dropped, so all it may
    /// do is make a thread check the token.
    pub fn on_cancel(&self, wake: impl Fn() + Send + Sync + 'static) -> CancelRegistration {
        let wake: Callback = Arc::new(wake);
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&self.inner.callbacks).push((id, Arc::clone(&wake)));
        if self.is_cancelled() {
            wake();
        }
        CancelRegistration {
            id,
            inner: Arc::clone(&self.inner),
        }
    }
}

/// Keeps a callback of [`CancelToken::on_cancel`] registered until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it removes the callback"]
pub struct CancelRegistration {
    id: u64,
    inner: Arc<Inner>,
}

impl Drop for CancelRegistration {
    fn drop(&mut self) {
        lock(&self.inner.callbacks).retain(|(id, _)| *id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callback_runs_while_registered_and_at_once_after_the_cancel() {
        let token = CancelToken::new();
        let calls = Arc::new(AtomicU64::new(0));
        let register = || {
            let calls = Arc::clone(&calls);
            token.on_cancel(move || {
                calls.fetch_add(1, Ordering::SeqCst);
            })
        };
        drop(register());
        let _kept = register();
        token.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let _late = register();
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
