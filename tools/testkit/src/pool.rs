//! Stores that the next test uses again, since most kinds are slow to start.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::{StoreKind, TestServer};

/// The stores that no test uses at the moment.
static IDLE: Mutex<Vec<(StoreKind, Arc<dyn TestServer>)>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<(StoreKind, Arc<dyn TestServer>)>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StoreKind {
    /// Returns an idle store of this kind, or starts one. The test must leave the store's settings as they were.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn share(self) -> io::Result<Shared> {
        let found = {
            let mut idle = idle();
            let found = idle.iter().position(|(kind, _)| *kind == self);
            found.map(|found| idle.swap_remove(found).1)
        };
        let store = match found {
            Some(store) => store,
            None => self.start()?,
        };
        Ok(Shared {
            store: Arc::clone(&store),
            returned: Returned { kind: self, store },
        })
    }
}

/// A store that one test uses at a time. Dropping this keeps the store for the next test. It does not if the test
/// panics, if the store cannot be [reset](TestServer::reset), if the test still uses it, or if it has no process.
///
/// ```no_run
/// # #[cfg(feature = "mysql")] fn run() -> std::io::Result<()> {
/// use lockkeeper_testkit::{MySqlKind, MySqlServer, Shared};
///
/// let server = Shared::<MySqlServer>::take(MySqlKind::MySql9)?;
/// # let _ = server.url();
/// # Ok(()) }
/// ```
pub struct Shared<S: ?Sized = dyn TestServer> {
    /// Declared first, so that it is dropped before the store returns.
    store: Arc<S>,
    returned: Returned,
}

impl<S: TestServer> Shared<S> {
    /// Returns an idle server of this kind, or starts one. The test must leave the server's settings as they were.
    ///
    /// # Errors
    /// As [`StoreKind::start`], or the kind is not one of this type of servers.
    pub fn take(kind: impl Into<StoreKind>) -> io::Result<Self> {
        let Shared { store, returned } = kind.into().share()?;
        let store: Arc<dyn Any + Send + Sync> = store;
        let other = |_| io::Error::other("a server of another type");
        let store = store.downcast().map_err(other)?;
        Ok(Self { store, returned })
    }
}

impl<S: ?Sized> Shared<S> {
    /// Returns the store. It is not used again if this lives longer than the test.
    #[must_use]
    pub fn to_arc(&self) -> Arc<S> {
        Arc::clone(&self.store)
    }
}

impl<S: ?Sized> Deref for Shared<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.store
    }
}

impl<S: ?Sized> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.returned.kind).finish()
    }
}

struct Returned {
    kind: StoreKind,
    store: Arc<dyn TestServer>,
}

impl Drop for Returned {
    fn drop(&mut self) {
        let is_used = Arc::strong_count(&self.store) > 1;
        // A file is as quick to make, and nothing would remove its folder when this program ends.
        let has_processes = !self.store.processes().is_empty();
        if has_processes && !is_used && !thread::panicking() && self.store.reset().is_ok() {
            idle().push((self.kind, Arc::clone(&self.store)));
        }
    }
}
