//! Locks that a thread can take again while it holds them.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::Error;
use crate::guard::LockGuard;
use crate::keeper::LockKeeper;
use crate::name::{AsLockName, LockName};
use crate::options::AcquireOptions;
use crate::sync::lock;

type Held = Mutex<HashMap<(ThreadId, LockName), Weak<Outermost>>>;

/// A keeper whose locks are reentrant: a thread that holds a name gets it again at once, without
/// asking the store, and the name is released once, with the last of its guards.
///
/// A type of its own, because code that relies on it reads differently: the inner guard's token is
/// the outer one's, and the inner release releases nothing. Other threads wait as ever. Only locks
/// taken through (clones of) the same `ReentrantKeeper` count.
///
/// ```
/// # use std::sync::Arc;
/// use lockkeeper_core::{LockKeeper, ReentrantKeeper};
///
/// fn book(keeper: &ReentrantKeeper) -> Result<(), lockkeeper_core::Error> {
///     let _outer = keeper.lock("product:7")?;
///     take_stock(keeper) // takes the same lock
/// }
///
/// fn take_stock(keeper: &ReentrantKeeper) -> Result<(), lockkeeper_core::Error> {
///     let inner = keeper.lock("product:7")?;
///     inner.ensure_held()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ReentrantKeeper {
    keeper: LockKeeper,
    held: Arc<Held>,
}

impl ReentrantKeeper {
    /// Reentrant locks on the store of `keeper`.
    pub fn new(keeper: LockKeeper) -> Self {
        Self {
            keeper,
            held: Arc::default(),
        }
    }

    /// As [`LockKeeper::lock`], or at once where this thread holds it.
    ///
    /// # Errors
    /// As [`LockKeeper::lock`]; [`ErrorKind::Lost`](crate::ErrorKind::Lost) where this thread held it and has lost it.
    pub fn lock(&self, name: impl AsLockName) -> Result<ReentrantGuard, Error> {
        let name = name.as_lock_name()?;
        match self.again(&name)? {
            Some(guard) => Ok(guard),
            None => Ok(self.outermost(self.keeper.lock_named(&name)?)),
        }
    }

    /// As [`LockKeeper::try_lock_for`], or at once where this thread holds it. A wait of zero is
    /// one attempt.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but that busy is `None`.
    pub fn try_lock_for(
        &self,
        name: impl AsLockName,
        wait: Duration,
    ) -> Result<Option<ReentrantGuard>, Error> {
        self.acquire(name, &AcquireOptions::new().wait(wait))
    }

    /// As [`LockKeeper::acquire`], or at once where this thread holds it; the outermost guard's
    /// lease stays as it is.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but that busy is `None`.
    pub fn acquire(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<Option<ReentrantGuard>, Error> {
        let name = name.as_lock_name()?;
        match self.again(&name)? {
            Some(guard) => Ok(Some(guard)),
            None => Ok(self
                .keeper
                .acquire_named(&name, options)?
                .map(|guard| self.outermost(guard))),
        }
    }

    /// The guard of this thread, once more.
    fn again(&self, name: &LockName) -> Result<Option<ReentrantGuard>, Error> {
        let key = (thread::current().id(), name.clone());
        let Some(outermost) = lock(&self.held).get(&key).and_then(Weak::upgrade) else {
            return Ok(None);
        };
        outermost.guard.ensure_held()?;
        Ok(Some(ReentrantGuard::new(outermost)))
    }

    fn outermost(&self, guard: LockGuard) -> ReentrantGuard {
        let key = (thread::current().id(), guard.name().clone());
        let outermost = Arc::new(Outermost {
            guard,
            key: key.clone(),
            held: Arc::clone(&self.held),
        });
        lock(&self.held).insert(key, Arc::downgrade(&outermost));
        ReentrantGuard::new(outermost)
    }
}

/// The lock itself; its guards share it.
struct Outermost {
    guard: LockGuard,
    key: (ThreadId, LockName),
    held: Arc<Held>,
}

impl Drop for Outermost {
    fn drop(&mut self) {
        // Before the guard goes: afterwards this thread has to ask like any other.
        lock(&self.held).remove(&self.key);
    }
}

/// One of the holds of a reentrant lock; the last one that is dropped releases the lock. It stays
/// on its thread, because that thread is who holds. Everything that can be asked of a
/// [`LockGuard`] can be asked of it.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct ReentrantGuard {
    outermost: Arc<Outermost>,
    on_its_thread: PhantomData<Rc<()>>,
}

impl ReentrantGuard {
    fn new(outermost: Arc<Outermost>) -> Self {
        Self {
            outermost,
            on_its_thread: PhantomData,
        }
    }

    /// How many guards share the lock now; 1 for the outermost alone.
    pub fn depth(&self) -> usize {
        Arc::strong_count(&self.outermost)
    }

    /// Drops this guard, and says whether the lock was held until now: also an inner guard can
    /// tell that the work was done without the lock.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost).
    pub fn finish(self) -> Result<(), Error> {
        self.ensure_held()
    }
}

impl Deref for ReentrantGuard {
    type Target = LockGuard;
    fn deref(&self) -> &LockGuard {
        &self.outermost.guard
    }
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantGuard")
            .field("guard", &self.outermost.guard)
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
