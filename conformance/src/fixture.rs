//! The interface between the suite and a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Error, LockProvider};

/// A temporary store. Every case gets a new one, and dropping it removes its files and processes.
///
/// Only [`open`](Fixture::open) is required. The other methods are hooks that inject faults with
/// the store's own means, without the keepers' knowledge. A case whose hook is missing is reported
/// as ignored.
pub trait Fixture: Send + Sync {
    /// Opens another provider on this store, as another program would.
    ///
    /// # Errors
    /// The error of the store. It fails the case.
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error>;

    /// Returns one line of text by which another process finds this store: the argument of the
    /// function in [`Suite::processes`](crate::Suite::processes).
    fn address(&self) -> Option<String> {
        None
    }

    /// Makes the store unreachable for all providers, including open ones, until the returned value
    /// is dropped.
    fn cut_off(&self) -> Option<Restore> {
        None
    }

    /// Delays every call of every provider by about `by`, until the returned value is dropped.
    fn slow_down(&self, by: Duration) -> Option<Restore> {
        let _ = by;
        None
    }

    /// Clears the store, including its epochs, as the restart of a server without persistence does.
    /// Returns `false` if there is no such hook.
    fn wipe(&self) -> bool {
        false
    }

    /// Ends the lease on `name` without the holder's knowledge: removes the row, deletes the key or
    /// kills the session. Wakes no waiter. Returns `false` if there is no such hook.
    fn end_lease(&self, namespace: &str, name: &str) -> bool {
        let _ = (namespace, name);
        false
    }

    /// Returns the losses of which the store tells a holder at once, before its next renewal: see contract 16. The
    /// cases of the other losses are reported as ignored.
    fn tells(&self) -> &'static [Loss] {
        &[]
    }

    /// Lists the rows, keys, sessions and files that locks and waiters occupy in the store, each
    /// described in a few words. The list is empty when no lock is held or waited for.
    fn leftovers(&self) -> Option<Vec<String>> {
        None
    }
}

/// How a holder loses its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// By [`Fixture::wipe`].
    Wiped,
    /// By [`Fixture::end_lease`].
    Ended,
    /// By [`Admin::force_release`](lockkeeper_core::Admin::force_release).
    Unlocked,
}

/// Ends an injected fault when it is dropped.
#[must_use = "the fault ends when this is dropped"]
pub struct Restore(Option<Box<dyn FnOnce() + Send>>);

impl Restore {
    /// Creates a value that calls `end` when it is dropped.
    pub fn new(end: impl FnOnce() + Send + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl fmt::Debug for Restore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Restore").finish_non_exhaustive()
    }
}
