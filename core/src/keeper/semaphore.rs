//! Semaphores: up to a limit of holders have a permit at the same time.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::keeper::LockKeeper;
use crate::keeper::guard::LockGuard;
use crate::mode::Mode;
use crate::name::{AsLockName, LockName};
use crate::options::AcquireOptions;

/// Grants up to a limit of permits at the same time, to all processes that use the store together.
///
/// Each [`Permit`] has a lease of its own, like a lock. It has a fencing token and is renewed while it lives. If
/// its holder dies, the permit becomes free. Permits are granted first come, first served. A semaphore is
/// independent of the lock of the same name.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, LockKeeper};
///
/// fn report(keeper: &LockKeeper) -> Result<u32, Error> {
///     // Five reports at a time, in all processes together.
///     let reports = keeper.semaphore("reports", 5)?;
///     let permit = reports.acquire()?;
///     // Work; the permit is released when it is dropped.
///     Ok(permit.slot()) // 0 to 4: no other holder has the same now
/// }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    keeper: LockKeeper,
    name: LockName,
    mode: Mode,
}

impl LockKeeper {
    /// Returns the semaphore of a name. Up to `permits` permits are held at the same time, from 1 to
    /// [`MAX_PERMITS`](crate::MAX_PERMITS), or to the largest limit of the store. The call does not
    /// contact the store.
    ///
    /// All programs have to use the same limit. While permits of another limit are held, acquiring one is
    /// [`ErrorKind::LimitMismatch`](crate::ErrorKind::LimitMismatch).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`](crate::ErrorKind::InvalidName) and [`ErrorKind::InvalidLimit`](crate::ErrorKind::InvalidLimit). [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store
    /// does not declare [`Capability::Permits`](crate::Capability::Permits), or has a smaller limit.
    pub fn semaphore(&self, name: impl AsLockName, permits: u32) -> Result<Semaphore, Error> {
        let name = name.as_lock_name()?.into_owned();
        let mode = Mode::Permit { limit: permits };
        mode.check(&self.capabilities())
            .map_err(|error| self.engine.located(&name, error))?;
        Ok(Semaphore {
            keeper: self.clone(),
            name,
            mode,
        })
    }
}

impl Semaphore {
    /// Acquires a permit, and waits for it at most the keeper's default wait.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut) if all permits were held until the end of the wait.
    /// [`ErrorKind::LimitMismatch`](crate::ErrorKind::LimitMismatch). Other errors as for [`LockKeeper::lock`].
    pub fn acquire(&self) -> Result<Permit, Error> {
        let options = AcquireOptions::new().mode(self.mode);
        self.keeper.lock_with(&self.name, &options)
    }

    /// Acquires a permit if one is free, in one attempt. `None` if all are held.
    ///
    /// # Errors
    /// [`ErrorKind::LimitMismatch`](crate::ErrorKind::LimitMismatch); others as [`LockKeeper::try_lock`].
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.try_acquire_for(Duration::ZERO)
    }

    /// Acquires a permit, and waits at most `wait`. `None` if all were held until then.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<Permit>, Error> {
        self.acquire_with(&AcquireOptions::new().wait(wait))
    }

    /// Acquires a permit, and waits at most until `deadline`. `None` if all were held until then.
    ///
    /// # Errors
    /// As [`try_acquire`](Self::try_acquire).
    pub fn try_acquire_until(&self, deadline: Instant) -> Result<Option<Permit>, Error> {
        self.try_acquire_for(deadline.saturating_duration_since(Instant::now()))
    }

    /// Acquires a permit with options. Their mode is that of this semaphore.
    ///
    /// # Errors
    /// As [`LockKeeper::acquire`], and [`ErrorKind::LimitMismatch`](crate::ErrorKind::LimitMismatch).
    pub fn acquire_with(&self, options: &AcquireOptions) -> Result<Option<Permit>, Error> {
        let options = options.clone().mode(self.mode);
        self.keeper.acquire(&self.name, &options)
    }

    /// Returns the name of the semaphore.
    pub fn name(&self) -> &LockName {
        &self.name
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// A held permit of a [`Semaphore`]. Dropping it releases the permit. Its [`slot`](LockGuard::slot) is a number that no
/// other permit has now.
pub type Permit = LockGuard;
