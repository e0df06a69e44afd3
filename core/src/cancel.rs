//! Waking a thread that waits for a lock.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::lock;

type Callback = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    next: AtomicU64,
    callbacks: Mutex<Vec<(u64, Callback)>>,
}

/// Wakes every acquisition that was started with a clone of it, now and later; they return
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled) and leave nothing behind in the store.
///
/// ```
/// use lockkeeper_core::CancelToken;
///
/// let stop = CancelToken::new();
/// let also = stop.clone(); // the same token
/// also.cancel();
/// assert!(stop.is_cancelled());
/// ```
#[derive(Clone, Default)]
pub struct CancelToken {
    inner: Arc<Inner>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes all waiters. For good: a token cannot be un-cancelled.
    pub fn cancel(&self) {
        self.inner.cancelled.store(true, Ordering::SeqCst);
        let callbacks: Vec<_> = lock(&self.inner.callbacks).clone();
        for (_, wake) in callbacks {
            wake();
        }
    }

    /// Whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.inner.cancelled.load(Ordering::SeqCst)
    }

    /// For backends: calls `wake` on [`cancel`](Self::cancel), at once where that has happened
    /// already, until the registration is dropped. `wake` must not block, and may come late by one:
    /// it only says "look again".
    pub fn on_cancel(&self, wake: impl Fn() + Send + Sync + 'static) -> CancelRegistration {
        let wake: Callback = Arc::new(wake);
        let id = self.inner.next.fetch_add(1, Ordering::Relaxed);
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

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken")
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

/// Keeps a callback of [`CancelToken::on_cancel`] registered until it is dropped.
#[must_use = "dropping it takes the callback back"]
pub struct CancelRegistration {
    id: u64,
    inner: Arc<Inner>,
}

impl Drop for CancelRegistration {
    fn drop(&mut self) {
        lock(&self.inner.callbacks).retain(|(id, _)| *id != self.id);
    }
}

impl fmt::Debug for CancelRegistration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelRegistration").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_back_while_registered_and_at_once_when_late() {
        let token = CancelToken::new();
        let calls = Arc::new(AtomicU64::new(0));
        let count = |calls: &Arc<AtomicU64>| {
            let calls = Arc::clone(calls);
            move || {
                calls.fetch_add(1, Ordering::SeqCst);
            }
        };
        drop(token.on_cancel(count(&calls)));
        let _kept = token.on_cancel(count(&calls));
        token.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let _late = token.on_cancel(count(&calls));
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
