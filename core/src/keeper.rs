//! What a program holds to lock with: a provider with queue, renewal and defaults.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admin::Admin;
use crate::capabilities::{Capabilities, Capability};
use crate::clock::{Clock, SystemClock};
use crate::engine::{Engine, Shared};
use crate::error::{Error, ErrorKind};
use crate::guard::LockGuard;
use crate::name::{AsLockName, LockName};
use crate::observer::{Notifier, Observer};
use crate::options::{AcquireOptions, LeasePolicy, Settings, Wait};
use crate::provider::{LockProvider, Released, Usage};
use crate::token::MAX_HANDOVERS;

/// Locks names on one store. Cloning is cheap, and clones are the same keeper; make one per store
/// and program.
///
/// Its threads (one that watches, one that renews, up to three more while store calls hang) start
/// with the first lock and end with the last clone and guard. Guards outlive their keeper. Dropping
/// the last of them all closes the store; a call to it that is under way is waited for, for 100 ms
/// at most.
#[derive(Clone)]
pub struct LockKeeper {
    engine: Arc<Shared>,
}

impl LockKeeper {
    /// Ttl where none is set.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// Wait where none is set.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);
    /// How often in a row a lease is handed over within the process, where nothing is set.
    pub const DEFAULT_HANDOVER_MAX: u32 = 100;
    /// How long a process may hand a lease on within itself, where nothing is set.
    pub const DEFAULT_HANDOVER_TIME: Duration = Duration::from_millis(50);

    /// A keeper over `provider`, with the defaults.
    pub fn builder(provider: Arc<dyn LockProvider>) -> LockKeeperBuilder {
        LockKeeperBuilder {
            provider,
            settings: Settings {
                wait: Wait::AtMost(Self::DEFAULT_WAIT),
                lease: LeasePolicy::Renewed {
                    ttl: Self::DEFAULT_TTL,
                },
                margin: None,
                handover_max: Self::DEFAULT_HANDOVER_MAX,
                handover_time: Self::DEFAULT_HANDOVER_TIME,
            },
            required: Vec::new(),
            clock: Arc::new(SystemClock),
            observer: None,
        }
    }

    /// Takes the lock, waiting as long as the keeper's default wait.
    ///
    /// Not reentrant: a thread that holds it already waits like any other.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] when another holder had it until the end of the wait;
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Unknown`] and others when the store could not say.
    pub fn lock(&self, name: impl AsLockName) -> Result<LockGuard, Error> {
        self.lock_named(&*name.as_lock_name()?)
    }

    pub(crate) fn lock_named(&self, name: &LockName) -> Result<LockGuard, Error> {
        let guard = self.acquire_named(name, &AcquireOptions::new())?;
        guard.ok_or_else(|| {
            let wait = match self.engine.settings.wait {
                Wait::AtMost(wait) => format!("{wait:?}"),
                Wait::Forever => "the wait".to_owned(),
            };
            Error::new(
                ErrorKind::TimedOut,
                format!("another holder had the lock for all of {wait}; wait longer, or try later"),
            )
            .with_name(name)
            .with_backend(self.engine.provider.backend())
        })
    }

    /// Takes the lock if it is free, in one attempt. `None`: it is held.
    ///
    /// Where another thread of this process asks the store for the same name at this moment, its
    /// answer counts for both. It is waited for, 2 s at most; after that the error is
    /// [`ErrorKind::Unavailable`].
    ///
    /// # Errors
    /// When the store could not say; see [`ErrorKind`].
    pub fn try_lock(&self, name: impl AsLockName) -> Result<Option<LockGuard>, Error> {
        self.try_lock_for(name, Duration::ZERO)
    }

    /// Takes the lock, waiting at most `wait`. `None`: another holder had it until then.
    ///
    /// # Errors
    /// When the store could not say; see [`ErrorKind`].
    pub fn try_lock_for(
        &self,
        name: impl AsLockName,
        wait: Duration,
    ) -> Result<Option<LockGuard>, Error> {
        self.acquire(name, &AcquireOptions::new().wait(wait))
    }

    /// Takes the lock, waiting until `deadline` at most. `None`: another holder had it until then.
    ///
    /// A deadline that has passed allows one attempt.
    ///
    /// # Errors
    /// When the store could not say; see [`ErrorKind`].
    pub fn try_lock_until(
        &self,
        name: impl AsLockName,
        deadline: Instant,
    ) -> Result<Option<LockGuard>, Error> {
        self.try_lock_for(name, deadline.saturating_duration_since(Instant::now()))
    }

    /// Takes the lock with `options`. `None`: another holder had it until the end of the wait.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when it was cancelled; else when the store could not say, or an
    /// option is out of bounds.
    pub fn acquire(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<Option<LockGuard>, Error> {
        self.acquire_named(&*name.as_lock_name()?, options)
    }

    pub(crate) fn acquire_named(
        &self,
        name: &LockName,
        options: &AcquireOptions,
    ) -> Result<Option<LockGuard>, Error> {
        match self.engine.acquire(name, options)? {
            None => Ok(None),
            Some(granted) => LockGuard::new(Arc::clone(&self.engine), granted).map(Some),
        }
    }

    /// Takes the lock as [`lock`](Self::lock) does, calls `work` with it, and releases it. What
    /// `work` returned is kept, whatever the release said.
    ///
    /// # Errors
    /// Those of [`lock`](Self::lock); then `work` was not called.
    pub fn with_lock<T>(
        &self,
        name: impl AsLockName,
        work: impl FnOnce(&LockGuard) -> T,
    ) -> Result<WithLock<T>, Error> {
        let guard = self.lock(name)?;
        let value = work(&guard);
        Ok(WithLock {
            value,
            released: guard.release(),
        })
    }

    /// What the store promises beyond the contract.
    pub fn capabilities(&self) -> Capabilities {
        self.engine.capabilities
    }

    /// What this keeper has cost its store so far; `None` where the backend does not count.
    pub fn usage(&self) -> Option<Usage> {
        self.engine.provider.usage()
    }

    /// Returns a URL that identifies the store and the namespace, for logs and people.
    ///
    /// It shows no secret. Two keepers that were opened alike return the same text.
    pub fn location(&self) -> String {
        self.engine.provider.location()
    }

    /// The lease of an acquisition that names none.
    pub fn lease(&self) -> LeasePolicy {
        self.engine.settings.lease
    }

    /// How much earlier than the store a guard with this ttl calls itself lost.
    pub fn margin(&self, ttl: Duration) -> Duration {
        self.engine.margin(ttl)
    }

    /// Returns the operators' interface: the holders, forced releases, and whether the store is fit
    /// for locks. `None` where the backend has no answers.
    ///
    /// It answers from the store, for this keeper's namespace, whichever process holds. Deadlines
    /// are moments of the keeper's clock, which is [`SystemClock`] unless it was given another.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use lockkeeper_core::{Clock, Error, LockKeeper, LockName, SystemClock};
    ///
    /// fn free(keeper: &LockKeeper, name: &LockName) -> Result<bool, Error> {
    ///     let soon = SystemClock.now() + Duration::from_secs(5);
    ///     let Some(admin) = keeper.admin() else {
    ///         return Ok(false);
    ///     };
    ///     match admin.held(Some(name), soon)?.first() {
    ///         Some(held) => admin.force_release(held, soon),
    ///         None => Ok(false),
    ///     }
    /// }
    /// ```
    pub fn admin(&self) -> Option<&dyn Admin> {
        self.engine.provider.admin()
    }

    /// The store's short name, such as `"sqlite"`.
    pub fn backend(&self) -> &'static str {
        self.engine.provider.backend()
    }
}

impl fmt::Debug for LockKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockKeeper")
            .field("provider", &self.engine.provider)
            .field("settings", &self.engine.settings)
            .finish_non_exhaustive()
    }
}

/// What [`LockKeeper::with_lock`] brings back.
#[derive(Debug)]
#[must_use = "the release may have found that the lock was lost during the work"]
pub struct WithLock<T> {
    /// What the work returned.
    pub value: T,
    /// What the release found. [`Released::AlreadyLost`] says that the lock was lost before the
    /// work was done.
    pub released: Result<Released, Error>,
}

impl<T> WithLock<T> {
    /// The value, if the lock was held until the work was done.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] where it was lost before. An unknown answer to the release is no error
    /// here: the lock was held until then.
    pub fn held(self) -> Result<T, Error> {
        match self.released {
            Ok(Released::AlreadyLost) => Err(Error::new(
                ErrorKind::Lost,
                "the lock was lost before the work was done",
            )),
            Ok(Released::Done) | Err(_) => Ok(self.value),
        }
    }
}

/// Makes a [`LockKeeper`].
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct LockKeeperBuilder {
    provider: Arc<dyn LockProvider>,
    settings: Settings,
    required: Vec<Capability>,
    clock: Arc<dyn Clock>,
    observer: Option<Arc<dyn Observer>>,
}

impl LockKeeperBuilder {
    pub(crate) fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// The lease where an acquisition names none. Default: renewed, 30 s.
    pub fn lease(mut self, policy: LeasePolicy) -> Self {
        self.settings.lease = policy;
        self
    }

    /// The wait where an acquisition names none. Default: 10 s.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.settings.wait = wait;
        self
    }

    /// How much earlier than the store a guard calls itself lost: for the time between looking and
    /// acting, and for clocks that run at different speeds. Default: a tenth of the ttl, at most
    /// 1 s. Never more than half of the ttl.
    pub fn margin(mut self, margin: Duration) -> Self {
        self.settings.margin = Some(margin);
        self
    }

    /// How often in a row a lease is handed over within the process before other processes get
    /// their turn: 0 (never) to 127. Default: 100.
    pub fn handover_max(mut self, times: u32) -> Self {
        self.settings.handover_max = times;
        self
    }

    /// How long a process may hand a lease on within itself before other processes get their
    /// turn. Default: 50 ms.
    pub fn handover_time(mut self, time: Duration) -> Self {
        self.settings.handover_time = time;
        self
    }

    /// Refuses a store without `capability`.
    pub fn require(mut self, capability: Capability) -> Self {
        self.required.push(capability);
        self
    }

    /// Tells `observer` what happens.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Counts deadlines on another clock; for tests.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// The keeper. Talks to no store.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a required capability that the store lacks;
    /// [`ErrorKind::InvalidTtl`], [`ErrorKind::TtlTooShort`], [`ErrorKind::InvalidWait`] and
    /// [`ErrorKind::InvalidValue`] for a setting out of bounds.
    pub fn build(self) -> Result<LockKeeper, Error> {
        let backend = self.provider.backend();
        let capabilities = self.provider.capabilities();
        for required in &self.required {
            if !capabilities.has(*required) {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("`{required}` is required, and this store cannot promise it; choose another store or drop the requirement"),
                )
                .with_backend(backend));
            }
        }
        if self.settings.handover_max > MAX_HANDOVERS {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                format!(
                    "`handover_max` is {}, and a lease is handed over at most {MAX_HANDOVERS} times",
                    self.settings.handover_max
                ),
            ));
        }
        let checked = self.settings.lease.check(&capabilities);
        checked
            .and(self.settings.wait.check())
            .map_err(|error| error.with_backend(backend))?;
        let notifier = Notifier::new(self.observer);
        Ok(LockKeeper {
            engine: Engine::open(self.provider, self.settings, self.clock, notifier),
        })
    }
}

impl fmt::Debug for LockKeeperBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockKeeperBuilder")
            .field("provider", &self.provider)
            .field("settings", &self.settings)
            .field("required", &self.required)
            .finish_non_exhaustive()
    }
}
