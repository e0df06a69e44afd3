//! Locking several names together, all or none.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::clock::HostInstant;
use crate::contract::provider::Released;
use crate::engine::EngineOwner;
use crate::engine::hold::acquired::Acquired;
use crate::engine::lock_all::AcquiredSet;
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::keeper::guard::LockGuard;
use crate::keeper::lost_signal::LostSignal;
use crate::mode::Mode;
use crate::name::{AsLockName, LockName};
use crate::options::AcquireOptions;
use crate::token::FencingToken;

impl LockKeeper {
    /// Acquires the locks of several names, all or none, and waits for them as long as the keeper's
    /// default, all together.
    ///
    /// Names are locked in the order of their bytes, whatever the order of `names`. A name that occurs twice counts
    /// once. A name can have a [mode of its own](InSet). So callers that lock overlapping sets never wait for each other in a circle, as long as they hold no
    /// other lock. Names that are free cost one request to the store where it takes several at once.
    ///
    /// ```
    /// # use lockkeeper_core as lockkeeper;
    /// use lockkeeper::{Error, LockKeeper};
    ///
    /// fn transfer(keeper: &LockKeeper, from: &str, to: &str, book: impl Fn()) -> Result<(), Error> {
    ///     let accounts = keeper.lock_all([from, to])?;
    ///     accounts.ensure_held()?;
    ///     book();
    ///     accounts.release().map(|_| ())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if another holder had one of the names until the end of the wait; the error says
    /// which name. [`ErrorKind::Lost`] if one was lost during the wait for the others. Other errors as for
    /// [`lock`](Self::lock). After an error, none of the names is held.
    pub fn lock_all<N: InSet>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<LockGuards, Error> {
        self.lock_all_with(names, &AcquireOptions::new())
    }

    /// Acquires the locks of several names with `options`, which count for each of them; the wait is that for
    /// all together.
    ///
    /// # Errors
    /// As [`lock_all`](Self::lock_all) and [`lock_with`](Self::lock_with).
    pub fn lock_all_with<N: InSet>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &AcquireOptions,
    ) -> Result<LockGuards, Error> {
        let (names, began) = (self.set_of(names, options)?, self.engine.clock.now());
        match self.engine.acquire_all(&names, options, began)? {
            AcquiredSet::All(acquired) => Ok(LockGuards::new(self, acquired)),
            AcquiredSet::Busy(name, mode) => Err(self.timed_out(name, mode, options, began)),
        }
    }

    /// Acquires the locks of several names if all are free, in one attempt. `None` if one is held.
    ///
    /// # Errors
    /// As [`lock_all`](Self::lock_all), but that busy is `None`.
    pub fn try_lock_all<N: InSet>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Option<LockGuards>, Error> {
        self.try_lock_all_for(names, Duration::ZERO)
    }

    /// Acquires the locks of several names, and waits at most `wait` for all of them together. `None` if
    /// another holder had one of them until then.
    ///
    /// # Errors
    /// As [`lock_all`](Self::lock_all), but that busy is `None`.
    pub fn try_lock_all_for<N: InSet>(
        &self,
        names: impl IntoIterator<Item = N>,
        wait: Duration,
    ) -> Result<Option<LockGuards>, Error> {
        self.acquire_all(names, &AcquireOptions::new().wait(wait))
    }

    /// Acquires the locks of several names, and waits at most until `deadline` for all of them together. `None` if
    /// another holder had one of them until then.
    ///
    /// # Errors
    /// As [`lock_all`](Self::lock_all), but that busy is `None`.
    pub fn try_lock_all_until<N: InSet>(
        &self,
        names: impl IntoIterator<Item = N>,
        deadline: Instant,
    ) -> Result<Option<LockGuards>, Error> {
        self.try_lock_all_for(names, deadline.saturating_duration_since(Instant::now()))
    }

    /// Acquires the locks of several names with `options`, which count for each of them; the wait is that for
    /// all together. `None` if another holder had one of them until the end of the wait.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire) and [`lock_all`](Self::lock_all).
    pub fn acquire_all<N: InSet>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &AcquireOptions,
    ) -> Result<Option<LockGuards>, Error> {
        let (names, began) = (self.set_of(names, options)?, self.engine.clock.now());
        Ok(match self.engine.acquire_all(&names, options, began)? {
            AcquiredSet::All(acquired) => Some(LockGuards::new(self, acquired)),
            AcquiredSet::Busy(..) => None,
        })
    }

    /// Returns the names in their order, each once, with their modes. A name that is wanted exclusively and shared is
    /// locked exclusively.
    fn set_of<N: InSet>(
        &self,
        names: impl IntoIterator<Item = N>,
        options: &AcquireOptions,
    ) -> Result<Vec<(LockName, Mode)>, Error> {
        let names = names.into_iter().map(|name| name.in_set(options.mode));
        let mut names = names.collect::<Result<Vec<_>, Error>>()?;
        let is_shared = |mode: Mode| mode == Mode::Shared;
        names.sort_by(|(one, of_one), (other, of_other)| {
            let modes = |mode: Mode| (mode.is_permit(), is_shared(mode), mode.limit());
            one.cmp(other).then(modes(*of_one).cmp(&modes(*of_other)))
        });
        names.dedup_by(|(name, mode), (before, of_before)| {
            let is_covered = *of_before == Mode::Exclusive && is_shared(*mode);
            name == before && (mode == of_before || is_covered)
        });
        if names.is_empty() {
            let text = "no name was given; name at least one lock";
            return Err(Error::new(ErrorKind::InvalidName, text).with_backend(self.backend()));
        }
        Ok(names)
    }
}

/// A name of a set, for [`LockKeeper::lock_all`]: any [`AsLockName`], in the mode of the options, or a pair of a name and
/// a mode of its own.
///
/// ```
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, LockGuards, LockKeeper, Mode};
///
/// fn book(keeper: &LockKeeper) -> Result<LockGuards, Error> {
///     keeper.lock_all([("hall", Mode::Shared), ("seat:42", Mode::Exclusive)])
/// }
/// ```
pub trait InSet {
    /// Returns the checked name, and its mode, which is `mode` if it has none of its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], see [`LockName::new`].
    fn in_set(self, mode: Mode) -> Result<(LockName, Mode), Error>;
}

impl<N: AsLockName> InSet for N {
    fn in_set(self, mode: Mode) -> Result<(LockName, Mode), Error> {
        Ok((self.as_lock_name()?.into_owned(), mode))
    }
}

impl<N: AsLockName> InSet for (N, Mode) {
    fn in_set(self, _: Mode) -> Result<(LockName, Mode), Error> {
        let (name, mode) = self;
        name.in_set(mode)
    }
}

/// The held locks of several names. Dropping it releases them. If one is lost, all count as lost: the work that
/// they protect was to be done under all of them.
#[must_use = "guards that are dropped at once release the locks at once"]
pub struct LockGuards {
    /// In the order of their names; at least one.
    guards: Vec<LockGuard>,
    engine: Arc<EngineOwner>,
    /// Made when it is asked for: each guard calls it back at its end.
    lost_signal: OnceLock<LostSignal>,
}

impl LockGuards {
    fn new(keeper: &LockKeeper, acquired: Vec<Acquired>) -> Self {
        let engine = &keeper.engine;
        let guard = |acquired| LockGuard::new(Arc::clone(engine), acquired);
        Self {
            guards: acquired.into_iter().map(guard).collect(),
            engine: Arc::clone(engine),
            lost_signal: OnceLock::new(),
        }
    }

    /// Returns the names that are held and their fencing tokens, in the order of the names.
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.guards
            .iter()
            .map(|guard| (guard.name(), guard.token()))
    }

    /// Returns the fencing token of one of the names; `None` if it is not among them.
    pub fn token(&self, name: impl AsRef<str>) -> Option<FencingToken> {
        let mut guards = self.guards.iter();
        let guard = guards.find(|guard| guard.name().as_str() == name.as_ref())?;
        Some(guard.token())
    }

    /// Returns the guard of each name, in the order of the names. Each has a
    /// [`commit_proof`](LockGuard::commit_proof) of its own.
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns whether all locks can be proved to be held right now. Costs no call to the store.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(LockGuard::is_held)
    }

    /// Returns an error if one of the locks is lost, which it names. Costs no call to the store.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`].
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guards.iter().try_for_each(LockGuard::ensure_held)
    }

    /// Returns how long all locks stay held without another renewal; zero if one is lost.
    pub fn remaining(&self) -> Duration {
        let remaining = self.guards.iter().map(LockGuard::remaining);
        remaining.min().unwrap_or_default()
    }

    /// Renews all locks now, as [`LockGuard::renew`] does.
    ///
    /// # Errors
    /// As [`LockGuard::renew`], of the first lock that could not be renewed.
    pub fn renew(&self) -> Result<(), Error> {
        self.guards.iter().try_for_each(LockGuard::renew)
    }

    /// Returns a signal of the first loss of one of the locks. It can outlive the guards.
    pub fn lost_signal(&self) -> LostSignal {
        let signal = self.lost_signal.get_or_init(|| {
            let guards = self.guards.iter().map(|guard| guard.acquired.clone());
            LostSignal::of_several(guards.collect(), &self.engine.clock)
        });
        signal.clone()
    }

    /// Releases all locks and returns what was found: [`Released::AlreadyLost`] if one was lost before. It costs
    /// one request to the store where that takes several at once, as does a drop.
    ///
    /// # Errors
    /// The store's answer is unknown for one of them, as for [`LockGuard::release`]. The others were released all the
    /// same.
    pub fn release(mut self) -> Result<Released, Error> {
        let acquired = self.take_acquired();
        let mut found = Released::Done;
        for answer in self.engine.release_all(&acquired) {
            if answer? == Released::AlreadyLost {
                found = Released::AlreadyLost;
            }
        }
        Ok(found)
    }

    fn take_acquired(&mut self) -> Vec<Acquired> {
        self.guards
            .drain(..)
            .map(LockGuard::into_acquired)
            .collect()
    }
}

impl Drop for LockGuards {
    fn drop(&mut self) {
        let acquired = self.take_acquired();
        self.engine
            .release_all_dropped(&acquired, HostInstant::NEVER);
    }
}

impl fmt::Debug for LockGuards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
