//! Locks that a thread can acquire again while it holds them.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::keeper::guard::LockGuard;
use crate::mode::Mode;
use crate::name::{AsLockName, LockName};
use crate::options::AcquireOptions;
use crate::sync::lock;

type Key = (ThreadId, LockName);
type Held = Mutex<HashMap<Key, Weak<Outermost>>>;

/// A keeper whose locks are reentrant. A thread that holds a name gets it again at once, without asking the store.
/// The name is released with the last of its guards.
///
/// It is another type than [`LockKeeper`], so that code shows when it relies on reentrant locks. An inner guard has
/// the token of the outer guard, and dropping the inner guard releases nothing. Other threads wait as usual. Only
/// locks that were acquired through the same `ReentrantKeeper`, or its clones, count.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, ReentrantKeeper};
///
/// fn book(keeper: &ReentrantKeeper) -> Result<(), Error> {
///     let _outer = keeper.lock("product:7")?;
///     take_stock(keeper) // locks the same name
/// }
///
/// fn take_stock(keeper: &ReentrantKeeper) -> Result<(), Error> {
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
    /// Makes reentrant locks of the store of `keeper`.
    pub fn new(keeper: LockKeeper) -> Self {
        Self {
            keeper,
            held: Arc::default(),
        }
    }

    /// Acquires the lock as [`LockKeeper::lock`] does, or at once if this thread holds it.
    ///
    /// # Errors
    /// As [`LockKeeper::lock`]. [`ErrorKind::Lost`] if this thread held the lock and has lost it.
    /// [`ErrorKind::Deadlock`] if this thread holds the lock shared, since it would wait for itself. Release
    /// that lock first, or lock exclusively from the beginning.
    pub fn lock(&self, name: impl AsLockName) -> Result<ReentrantGuard, Error> {
        let name = name.as_lock_name()?;
        self.lock_in(&name, Mode::Exclusive)
    }

    /// Acquires the lock beside other shared holders, as [`LockKeeper::lock_shared`] does. If this thread
    /// holds it in either mode, it is acquired at once: an exclusive holder may read.
    ///
    /// # Errors
    /// As [`LockKeeper::lock_shared`], and [`ErrorKind::Lost`] as [`lock`](Self::lock).
    pub fn lock_shared(&self, name: impl AsLockName) -> Result<ReentrantGuard, Error> {
        self.lock_in(&*name.as_lock_name()?, Mode::Shared)
    }

    fn lock_in(&self, name: &LockName, mode: Mode) -> Result<ReentrantGuard, Error> {
        match self.inner_guard(name, mode)? {
            Some(guard) => Ok(guard),
            None => {
                let options = AcquireOptions::new().mode(mode);
                Ok(self.outermost_guard(self.keeper.lock_with(name, &options)?))
            }
        }
    }

    /// Acquires the lock as [`LockKeeper::try_lock_for`] does, or at once if this thread holds it. A
    /// wait of zero is one attempt.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub fn try_lock_for(
        &self,
        name: impl AsLockName,
        wait: Duration,
    ) -> Result<Option<ReentrantGuard>, Error> {
        self.acquire(name, &AcquireOptions::new().wait(wait))
    }

    /// Acquires the lock as [`LockKeeper::acquire`] does, or at once if this thread holds it. Then
    /// the options do not change the outermost guard's lease.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but a busy lock is `None`.
    pub fn acquire(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<Option<ReentrantGuard>, Error> {
        let name = name.as_lock_name()?;
        if let Some(guard) = self.inner_guard(&name, options.mode)? {
            return Ok(Some(guard));
        }
        let guard = self.keeper.acquire(&*name, options)?;
        Ok(guard.map(|guard| self.outermost_guard(guard)))
    }

    /// Ends all waits for locks, as [`LockKeeper::close`] does. A thread that holds a lock still gets
    /// it again, so that it can finish its work.
    pub fn close(&self) {
        self.keeper.close();
    }

    /// Returns one more guard of a lock that this thread holds.
    fn inner_guard(&self, name: &LockName, mode: Mode) -> Result<Option<ReentrantGuard>, Error> {
        if mode.is_permit() {
            let text = "a permit is not reentrant, since each one counts; acquire it from `LockKeeper::semaphore`";
            return Err(self
                .keeper
                .engine
                .located(name, Error::new(ErrorKind::Unsupported, text)));
        }
        let key = (thread::current().id(), name.clone());
        let Some(outermost) = lock(&self.held).get(&key).and_then(Weak::upgrade) else {
            return Ok(None);
        };
        outermost.guard.ensure_held()?;
        if (outermost.guard.mode(), mode) == (Mode::Shared, Mode::Exclusive) {
            let text = "this thread holds the lock shared, and would wait for itself to lock it exclusively; release it first, or lock it exclusively from the beginning";
            return Err(outermost.guard.error(ErrorKind::Deadlock, text));
        }
        Ok(Some(ReentrantGuard::new(outermost)))
    }

    fn outermost_guard(&self, guard: LockGuard) -> ReentrantGuard {
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

/// The lock that the guards of a thread share.
struct Outermost {
    guard: LockGuard,
    key: Key,
    held: Arc<Held>,
}

impl Drop for Outermost {
    fn drop(&mut self) {
        // This precedes the release of the guard. From here on, this thread waits for the lock like any
        // other.
        lock(&self.held).remove(&self.key);
    }
}

/// One of the guards of a reentrant lock. The drop of the last one releases the lock. A guard stays on
/// its thread, because the thread is the holder. It has all methods of a [`LockGuard`] that borrow the
/// guard.
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

    /// Returns the number of guards that share the lock now; 1 if there is only the outermost one.
    pub fn depth(&self) -> usize {
        Arc::strong_count(&self.outermost)
    }

    /// Drops this guard, also an inner one, and returns an error if the lock was lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`].
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
