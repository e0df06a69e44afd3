//! What the suite has to know of a store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{Error, LockProvider};

/// One throw-away store. Every case gets a new one; dropping it removes what it left on the host.
///
/// Only [`open`](Fixture::open) is required. The rest are hooks: what they do to the store they do
/// for real, by its own means and behind the keepers' backs. A case whose hook is missing shows as
/// ignored.
pub trait Fixture: Send + Sync {
    /// A new provider on this store, as a further keeper or program would open it.
    ///
    /// # Errors
    /// What the store says; it fails the case.
    fn open(&self, namespace: &str) -> Result<Arc<dyn LockProvider>, Error>;

    /// How another process reaches this very store; it is given to the function of
    /// [`Suite::processes`](crate::Suite::processes) there. One line.
    fn address(&self) -> Option<String> {
        None
    }

    /// Puts the store out of reach of every provider, those that are open included, until what it
    /// returns is dropped.
    fn cut_off(&self) -> Option<Restore> {
        None
    }

    /// Has every call of every provider take about this much longer, until what it returns is
    /// dropped.
    fn slow_down(&self, by: Duration) -> Option<Restore> {
        let _ = by;
        None
    }

    /// Has the store forget everything that it ever knew, epochs included, as a server without
    /// persistence does when it restarts. False: there is no such hook.
    fn wipe(&self) -> bool {
        false
    }

    /// Ends the lease on `name` behind its holder's back, as an operator would who removes the
    /// row, deletes the key or kills the session. Wakes nobody. False: there is no such hook.
    fn end_lease(&self, namespace: &str, name: &str) -> bool {
        let _ = (namespace, name);
        false
    }

    /// What stands in the store now on account of locks that are held or waited for: rows, keys,
    /// sessions, files, each described in a few words. Empty when nothing is held or waited for.
    fn leftovers(&self) -> Option<Vec<String>> {
        None
    }
}

/// Ends a fault when it is dropped.
#[must_use = "the fault ends when this is dropped"]
pub struct Restore(Option<Box<dyn FnOnce() + Send>>);

impl Restore {
    /// Calls `end` when dropped.
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
