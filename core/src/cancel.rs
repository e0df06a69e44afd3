//! Ending a wait for a lock from another thread.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::sync::{lock, run_caught};

type Callback = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Inner {
    cancelled: AtomicBool,
    next_id: AtomicU64,
    /// In the order in which they were registered.
    callbacks: Mutex<BTreeMap<u64, Callback>>,
}

impl Inner {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cancelled: {:?}", self.cancelled)
    }
}

/// Ends every acquisition that has a clone of this token, now and later. The acquisitions return
/// [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled), and leave nothing behind in the store.
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
#[derive(Clone, Debug)]
pub struct CancelToken {
    own: Arc<Inner>,
    /// The token that cancels this one as well.
    parent: Option<Arc<Inner>>,
}

impl CancelToken {
    /// Makes a token that is not cancelled.
    pub fn new() -> Self {
        Self {
            own: Arc::default(),
            parent: None,
        }
    }

    /// Cancels all acquisitions with this token. A token cannot be un-cancelled.
    pub fn cancel(&self) {
        self.own.cancelled.store(true, Ordering::SeqCst);
        let callbacks: Vec<_> = lock(&self.own.callbacks).values().cloned().collect();
        for callback in callbacks {
            // A callback that panics does not prevent the others.
            run_caught(|| callback());
        }
    }

    /// Returns the same token, which `parent` cancels as well.
    pub(crate) fn with_parent(&self, parent: &Self) -> Self {
        Self {
            own: Arc::clone(&self.own),
            parent: Some(Arc::clone(&parent.own)),
        }
    }

    /// Returns whether [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        let parent = self.parent.as_ref();
        self.own.is_cancelled() || parent.is_some_and(|it| it.is_cancelled())
    }

    /// Calls `wake` on [`cancel`](Self::cancel), until the registration is dropped. If the token is
    /// cancelled already, calls it at once. It is for backends.
    ///
    /// `wake` must not block. It may run once more after the registration was dropped, so it should
    /// only make a thread check the token.
    pub fn on_cancel(&self, wake: impl Fn() + Send + Sync + 'static) -> CancelRegistration {
        let wake: Callback = Arc::new(wake);
        let registration = CancelRegistration {
            _own: Registered::new(&self.own, &wake),
            _parent: self.parent.as_ref().map(|it| Registered::new(it, &wake)),
        };
        if self.is_cancelled() {
            wake();
        }
        registration
    }
}

impl Default for CancelToken {
    fn default() -> Self {
        Self::new()
    }
}

/// Keeps a callback of [`CancelToken::on_cancel`] registered until it is dropped.
#[derive(Debug)]
#[must_use = "dropping it removes the callback"]
pub struct CancelRegistration {
    _own: Registered,
    _parent: Option<Registered>,
}

/// A callback at one source of a token.
#[derive(Debug)]
struct Registered {
    id: u64,
    source: Arc<Inner>,
}

impl Registered {
    fn new(source: &Arc<Inner>, wake: &Callback) -> Self {
        let id = source.next_id.fetch_add(1, Ordering::Relaxed);
        lock(&source.callbacks).insert(id, Arc::clone(wake));
        Self {
            id,
            source: Arc::clone(source),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The callback is dropped when the mutex is free, since its captures run the caller's code.
        let removed = lock(&self.source.callbacks).remove(&self.id);
        drop(removed);
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
        let _broken = token.on_cancel(|| panic!("the user's own"));
        let _kept = register();
        token.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        let _late = register();
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn parent_cancels_the_token_and_not_the_other_way_round() {
        let (own, parent) = (CancelToken::new(), CancelToken::new());
        let child = own.with_parent(&parent);
        let calls = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&calls);
        let registration = child.on_cancel(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        child.cancel();
        assert!(own.is_cancelled() && !parent.is_cancelled());
        parent.cancel();
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        drop(registration);
        for source in [&own, &parent] {
            assert!(lock(&source.own.callbacks).is_empty());
        }

        let own = CancelToken::new();
        assert!(own.with_parent(&parent).is_cancelled() && !own.is_cancelled());
    }
}
