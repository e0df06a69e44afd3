//! The keeper: what a program calls to lock names.

pub(crate) mod builder;
pub(crate) mod guard;
pub(crate) mod lock_all;
pub(crate) mod lost_signal;
mod offset_admin;
pub(crate) mod proof;
pub(crate) mod reentrant;
pub(crate) mod schedule;
pub(crate) mod semaphore;
pub(crate) mod ticket;
mod timed_out;
pub(crate) mod transaction_lock;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::capabilities::{Capabilities, Capability};
use crate::contract::admin::Admin;
use crate::contract::provider::{Released, Usage};
use crate::engine::hold::acquired::Acquired;
use crate::engine::{AwaitReleases, EngineOwner};
use crate::error::{Error, ErrorKind};
use crate::keeper::guard::LockGuard;
use crate::keeper::ticket::Ticket;
use crate::mode::Mode;
use crate::name::AsLockName;
use crate::options::{AcquireOptions, LeasePolicy};
use crate::token::FencingToken;

use crate::keeper::transaction_lock::TransactionLock;
use offset_admin::OffsetAdmin;

/// Locks names on one store. Make one keeper for each store and program. Cloning is cheap, and a
/// clone is the same keeper.
///
/// ```
/// use std::time::Duration;
/// # use lockkeeper_core as lockkeeper;
/// use lockkeeper::{Error, LockKeeper};
///
/// fn book(keeper: &LockKeeper) -> Result<bool, Error> {
///     let Some(seat) = keeper.try_lock_for("seat:42", Duration::from_millis(200))? else {
///         return Ok(false); // another holder had it until then
///     };
///     // Work; the guard is released when it is dropped.
///     seat.ensure_held().map(|()| true)
/// }
/// ```
///
/// A keeper's threads start with the first lock, and end with the last clone and guard. One thread watches
/// deadlines. Another one calls the store, and up to thirty more join while store calls hang. Guards outlive their
/// keeper. Dropping the last clone waits for
/// releases of dropped guards, for 2 s at most. Dropping the last clone or guard closes the store. It waits for a
/// store call that is under way, for 100 ms at most.
#[derive(Clone)]
pub struct LockKeeper {
    pub(crate) engine: Arc<EngineOwner>,
    /// Dropped with the last clone.
    pub(crate) _await_releases: Arc<AwaitReleases>,
    pub(crate) admin: Option<OffsetAdmin>,
}

impl LockKeeper {
    /// The default ttl.
    pub const DEFAULT_TTL: Duration = Duration::from_secs(30);
    /// The default wait.
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(10);
    /// The default limit of hand-overs in a row within the process.
    pub const DEFAULT_HANDOVER_MAX: u32 = 100;
    /// The default limit of the time for which a lease is handed over within the process.
    pub const DEFAULT_HANDOVER_TIME: Duration = Duration::from_millis(50);

    /// Acquires the lock, and waits for it at most the keeper's default wait.
    ///
    /// It is not reentrant: a thread that holds the name already waits like any other.
    ///
    /// Two threads or processes can each hold a name and wait for the other's. They wait until one of them times
    /// out: no store detects a deadlock between keepers. So lock several names in the same order everywhere, such
    /// as sorted, and release them before you try again.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`] if another holder had the lock until the end of the wait.
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Unknown`] and others if the store gave no answer.
    pub fn lock(&self, name: impl AsLockName) -> Result<LockGuard, Error> {
        self.lock_with(name, &AcquireOptions::new())
    }

    /// Acquires the lock with `options`. A lock that stays busy is an error.
    ///
    /// [`acquire`](Self::acquire) returns `None` for a busy lock.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`ErrorKind::TimedOut`] if another holder had the lock until the
    /// end of the wait.
    #[inline]
    pub fn lock_with(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<LockGuard, Error> {
        let (name, began) = (name.as_lock_name()?, self.engine.clock.now());
        let until = (self.engine.deadline(options, began), None);
        match self.engine.acquire(&name, options, until, began)? {
            Some(acquired) => Ok(self.guard(acquired)),
            None => Err(self.timed_out(&name, options.mode, options, began)),
        }
    }

    fn guard(&self, acquired: Acquired) -> LockGuard {
        LockGuard::new(Arc::clone(&self.engine), acquired)
    }

    /// Acquires the lock if it is free, in one attempt. Returns `None` if it is held.
    ///
    /// If another thread of this process is asking the store for the same name, the store's answer
    /// counts for both threads. The call waits for that answer at most 2 s, and then returns
    /// [`ErrorKind::Unavailable`].
    ///
    /// # Errors
    /// When the store could not say; see [`ErrorKind`].
    pub fn try_lock(&self, name: impl AsLockName) -> Result<Option<LockGuard>, Error> {
        self.try_lock_for(name, Duration::ZERO)
    }

    /// Acquires the lock, and waits at most `wait`. Returns `None` if another holder had it until then.
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

    /// Acquires the lock, and waits at most until `deadline`. Returns `None` if another holder had
    /// it until then.
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

    /// Acquires the lock beside other shared holders. Waits, at most the keeper's default wait, for
    /// an exclusive holder and for earlier waiters.
    ///
    /// The threads of a process share one lease, so most of them need no request to the store. The guard's
    /// token is larger than that of every earlier exclusive grant.
    ///
    /// ```
    /// # use lockkeeper_core as lockkeeper;
    /// use lockkeeper::{Error, LockKeeper};
    ///
    /// fn price(keeper: &LockKeeper, read: impl Fn() -> u32) -> Result<u32, Error> {
    ///     let _reading = keeper.lock_shared("catalog")?;
    ///     Ok(read()) // many threads and processes read at the same time
    /// }
    ///
    /// fn change(keeper: &LockKeeper, write: impl Fn()) -> Result<(), Error> {
    ///     let writing = keeper.lock("catalog")?; // no other holder reads meanwhile
    ///     write();
    ///     writing.release().map(|_| ())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`lock`](Self::lock), and [`ErrorKind::Unsupported`] if the store has no
    /// [`Capability::Shared`](crate::Capability::Shared).
    pub fn lock_shared(&self, name: impl AsLockName) -> Result<LockGuard, Error> {
        self.lock_with(name, &AcquireOptions::new().mode(Mode::Shared))
    }

    /// Acquires the lock beside other shared holders, with `options`, whose mode has no effect.
    ///
    /// # Errors
    /// As [`lock_with`](Self::lock_with), and [`ErrorKind::Unsupported`].
    pub fn lock_shared_with(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<LockGuard, Error> {
        self.lock_with(name, &options.clone().mode(Mode::Shared))
    }

    /// Acquires the lock beside other shared holders, in one attempt. Returns `None` if an exclusive
    /// holder has it, or if another thread or process waits for the exclusive lock.
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::Unsupported`].
    pub fn try_lock_shared(&self, name: impl AsLockName) -> Result<Option<LockGuard>, Error> {
        self.try_lock_shared_for(name, Duration::ZERO)
    }

    /// Acquires the lock beside other shared holders, and waits at most `wait`. Returns `None` if it was
    /// not granted until then.
    ///
    /// # Errors
    /// As [`try_lock_for`](Self::try_lock_for), and [`ErrorKind::Unsupported`].
    pub fn try_lock_shared_for(
        &self,
        name: impl AsLockName,
        wait: Duration,
    ) -> Result<Option<LockGuard>, Error> {
        self.acquire(name, &AcquireOptions::new().mode(Mode::Shared).wait(wait))
    }

    /// Acquires the lock beside other shared holders, and waits at most until `deadline`. Returns `None` if it was
    /// not granted until then.
    ///
    /// # Errors
    /// As [`try_lock_until`](Self::try_lock_until), and [`ErrorKind::Unsupported`].
    pub fn try_lock_shared_until(
        &self,
        name: impl AsLockName,
        deadline: Instant,
    ) -> Result<Option<LockGuard>, Error> {
        self.try_lock_shared_for(name, deadline.saturating_duration_since(Instant::now()))
    }

    /// Acquires the lock with `options`. Returns `None` if another holder had it until the end of the wait.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] after a cancel. Other errors if the store gave no answer, or an
    /// option is out of bounds.
    pub fn acquire(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
    ) -> Result<Option<LockGuard>, Error> {
        let (began, name) = (self.engine.clock.now(), name.as_lock_name()?);
        let until = (self.engine.deadline(options, began), None);
        let acquired = self.engine.acquire(&name, options, until, began)?;
        Ok(acquired.map(|acquired| self.guard(acquired)))
    }

    /// Acquires the lock as [`lock`](Self::lock) does, calls `work` with the guard, and releases
    /// the lock. The result has the value of `work`, whatever the release found.
    ///
    /// # Errors
    /// As [`lock`](Self::lock). Then `work` was not called.
    pub fn run_locked<T>(
        &self,
        name: impl AsLockName,
        work: impl FnOnce(&LockGuard) -> T,
    ) -> Result<RunLocked<T>, Error> {
        let guard = self.lock(name)?;
        let value = work(&guard);
        Ok(RunLocked {
            value,
            released: guard.release(),
        })
    }

    /// Goes on with the lock of a ticket, which another process may have [detached](LockGuard::detach).
    ///
    /// The store gives the lease to this call, with a larger token and the keeper's lease policy. So the last call has
    /// the lock: an earlier guard of the ticket is lost at its next renewal, and at its own deadline at the latest. It
    /// can neither extend nor release the lock, and data that compares tokens refuses its writes. The ticket stays
    /// valid, so that another process can go on after a crash. During an outage, the call asks again for the
    /// keeper's default wait. The guard's lock is not handed over to other threads of this process.
    ///
    /// # Errors
    /// - [`ErrorKind::Lost`] if the lock has ended: nobody resumed it in time, or it was released.
    /// - [`ErrorKind::Incompatible`] if the ticket is of another store or namespace.
    /// - [`ErrorKind::Unsupported`] if the store has no [`Capability::Tickets`](crate::Capability::Tickets).
    /// - [`ErrorKind::Unavailable`], [`ErrorKind::Unknown`] and others if the store gave no answer. The lock goes on,
    ///   and the call may be repeated.
    pub fn resume(&self, ticket: &Ticket) -> Result<LockGuard, Error> {
        let name = ticket.name();
        let refuse = |kind, text| Err(self.engine.located(name, Error::new(kind, text)));
        if !self.capabilities().has(Capability::Tickets) {
            return refuse(ErrorKind::Unsupported, ticket::unsupported());
        }
        let location = self.location();
        if ticket.location() != location {
            let text = format!(
                "the ticket is of {}, and this keeper is on {location}; open the keeper with the same URL and namespace",
                ticket.location()
            );
            return refuse(ErrorKind::Incompatible, text);
        }
        let acquired = self.engine.resume(name, ticket.lease())?;
        Ok(self.guard(acquired))
    }

    /// Returns the SQL by which a transaction of the application takes the exclusive lock of a name, and holds it
    /// until the transaction ends.
    ///
    /// Only PostgreSQL has such locks. The lock and the guards of the name, of all keepers of the namespace,
    /// exclude each other. The keeper does not renew the lock, and does not show it to operators.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the store has no such lock; [`ErrorKind::InvalidName`].
    pub fn transaction_lock(
        &self,
        name: impl AsLockName,
        wait: Duration,
    ) -> Result<TransactionLock<'_>, Error> {
        let name = name.as_lock_name()?;
        let sql = self.engine.provider.transaction_lock(&name, wait);
        let sql = sql.ok_or_else(|| {
            let text = "this store has no lock that lives as long as a transaction of yours; hold a guard, and commit under it with `commit_in`";
            self.engine.located(&name, Error::new(ErrorKind::Unsupported, text))
        })?;
        Ok(TransactionLock::new(self, name.into_owned(), sql))
    }

    /// Composes the token of a grant that has no hand-overs.
    pub(crate) fn first_token(&self, epoch: u64) -> Result<FencingToken, Error> {
        FencingToken::first(epoch, self.engine.settings.epoch_offset)
    }

    /// Ends all waits for locks of this keeper, now and later. Call it at the end of a program.
    ///
    /// The waits end with [`ErrorKind::Cancelled`], on all clones of the keeper, and leave nothing
    /// behind in the store. `close` waits for that, and for releases that other threads have begun, for
    /// 2 s at most. After that time, requests may still be in flight to a store that hangs. Do not call
    /// it from an [`Observer`](crate::Observer), which would wait for itself.
    ///
    /// Guards stay held and are renewed until they are released or dropped, so that the work under
    /// them can be finished. Calling it again has no effect. A [`CancelToken`](crate::CancelToken)
    /// ends single waits instead.
    ///
    /// ```
    /// # use lockkeeper_core as lockkeeper;
    /// use lockkeeper::{ErrorKind, LockKeeper};
    ///
    /// fn work(keeper: &LockKeeper) {
    ///     loop {
    ///         match keeper.lock("jobs") {
    ///             Ok(_guard) => { /* take a job, and do it */ }
    ///             Err(error) if error.kind() == ErrorKind::Cancelled => return,
    ///             Err(error) => eprintln!("{error}"),
    ///         }
    ///     }
    /// }
    ///
    /// fn serve(keeper: &LockKeeper, wait_for_signal: impl FnOnce()) {
    ///     std::thread::scope(|scope| {
    ///         scope.spawn(|| work(keeper));
    ///         wait_for_signal();
    ///         keeper.close(); // the worker finishes its job, or stops waiting for one
    ///     });
    /// }
    /// ```
    pub fn close(&self) {
        self.engine.close();
    }

    /// Returns what the store promises beyond the contract.
    pub fn capabilities(&self) -> Capabilities {
        self.engine.capabilities
    }

    /// Returns the number of releases that the keeper's threads have not finished: of dropped guards, and of those whose
    /// [`release`](LockGuard::release) got no answer at first.
    pub fn pending_releases(&self) -> usize {
        self.engine.pending_releases()
    }

    /// Returns the number of this keeper's requests to the store so far, and its connections. `None` if the
    /// backend does not count them.
    pub fn usage(&self) -> Option<Usage> {
        self.engine.provider.usage()
    }

    /// Returns a URL that identifies the store and the namespace, for logs and people.
    ///
    /// It shows no secret. Two keepers that were opened alike return the same text.
    pub fn location(&self) -> String {
        self.engine.provider.location()
    }

    /// Returns the default lease policy of acquisitions.
    pub fn lease(&self) -> LeasePolicy {
        self.engine.settings.lease
    }

    /// Returns the default `max_hold` of acquisitions.
    pub fn max_hold(&self) -> Option<Duration> {
        self.engine.settings.max_hold
    }

    /// Returns how much earlier than the store a guard with this ttl considers itself lost.
    pub fn margin(&self, ttl: Duration) -> Duration {
        self.engine.margin(ttl)
    }

    /// Returns the interface for operators: the holders, forced releases, and checks of the store.
    /// `None` if the backend has none.
    ///
    /// Its answers come from the store. They are about the names of this keeper's namespace,
    /// whichever process holds them. Deadlines are counted by the keeper's clock, by default
    /// [`SystemClock`](crate::SystemClock).
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// # mod lockkeeper { pub use lockkeeper_core::*; pub mod clock { pub use lockkeeper_core::*; } }
    /// use lockkeeper::clock::{Clock, SystemClock};
    /// use lockkeeper::{Error, LockKeeper, LockName};
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
        self.admin.as_ref().map(|admin| admin as &dyn Admin)
    }

    /// Returns the store's short name, such as `"sqlite"`.
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

/// The result of [`LockKeeper::run_locked`].
#[derive(Debug)]
#[must_use = "the release may have found that the lock was lost during the work"]
pub struct RunLocked<T> {
    /// The value that the work returned.
    pub value: T,
    /// The result of the release: [`Released::AlreadyLost`] if the lock was lost before the work
    /// was done.
    pub released: Result<Released, Error>,
}

impl<T> RunLocked<T> {
    /// Returns the value, if the lock was held until the work was done.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if the lock was lost before. An unknown answer to the release is no error
    /// here, since the lock was held until then.
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
