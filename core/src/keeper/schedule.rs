//! One of many processes does it: as a leader, or at each tick of a schedule.

use std::fmt;
use std::ops::{ControlFlow, Deref};
use std::time::Duration;

use crossbeam_utils::sync::Parker;

use crate::cancel::{CancelRegistration, CancelToken};
use crate::clock::HostInstant;
use crate::engine::timer::MAX_SLEEP;
use crate::error::{Error, ErrorKind};
use crate::keeper::LockKeeper;
use crate::keeper::guard::LockGuard;
use crate::name::AsLockName;
use crate::options::{AcquireOptions, LeasePolicy};

impl LockKeeper {
    /// Leads whenever this process holds the lock of `name`: `work` is called with each grant, and the next
    /// campaign begins when it returns `Continue`.
    ///
    /// It blocks its thread: campaigning, which waits without an end and through outages, or in `work`. Call it
    /// on a thread of its own. `work` ends its term when the lock is lost, which [`Leader::pause`] tells: by
    /// then another process may lead. `Break` ends the leadership for good, and so does a panic. In each case the
    /// lock is released, and another process leads next.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use std::time::Duration;
    /// # use lockkeeper_core as lockkeeper;
    /// use lockkeeper::{Error, LockKeeper};
    ///
    /// fn send_mails(keeper: &LockKeeper, send: impl Fn(u64)) -> Result<(), Error> {
    ///     keeper.lead("mailer", |leader| {
    ///         while leader.pause(Duration::from_secs(1)) {
    ///             send(leader.token().get()); // the data refuses smaller tokens
    ///         }
    ///         ControlFlow::Continue(()) // lost, or the program ends
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] after [`close`](Self::close); errors that another try would not mend
    /// ([`Error::is_retryable`]).
    pub fn lead<T>(
        &self,
        name: impl AsLockName,
        work: impl FnMut(&Leader<'_>) -> ControlFlow<T>,
    ) -> Result<T, Error> {
        self.lead_with(name, &AcquireOptions::new(), work)
    }

    /// Leads as [`lead`](Self::lead) does, with options: a lease, a [`CancelToken`] that ends the leadership.
    /// A wait in them does not count.
    ///
    /// # Errors
    /// As [`lead`](Self::lead), and [`ErrorKind::Cancelled`] after the token was cancelled.
    pub fn lead_with<T>(
        &self,
        name: impl AsLockName,
        options: &AcquireOptions,
        mut work: impl FnMut(&Leader<'_>) -> ControlFlow<T>,
    ) -> Result<T, Error> {
        let name = name.as_lock_name()?;
        let options = options.clone().wait_forever();
        let cancel = self.engine.ending(options.cancel.as_ref());
        let mut failures = 0;
        loop {
            match self.lock_with(&*name, &options) {
                Ok(guard) => {
                    failures = 0;
                    let leader = Leader::new(&guard, cancel.clone());
                    if let ControlFlow::Break(value) = work(&leader) {
                        return Ok(value);
                    }
                }
                Err(error) if error.is_retryable() => {
                    self.engine.back_off(&cancel, failures);
                    failures = failures.saturating_add(1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs `work` for one tick of a schedule, if no other process does, or has just done it. Returns `None`
    /// without running it otherwise.
    ///
    /// All processes call it at each tick; one attempt decides. The lock is then held for `at_least`, counted from
    /// the grant, also if `work` is done sooner or panics. A process whose clock is behind, or that was busy, comes
    /// to the tick later, and must still find the lock held. So `at_least` is longer than the clocks differ and than
    /// a process may be late. It is shorter than the time between two ticks. A process that is later gets the lock,
    /// since nothing remembers which ticks were run. So `work` compares the clock with the tick, and skips what is
    /// too late. The call returns when both are over, or when the keeper is closed. The lease is renewed, whatever
    /// the keeper's policy is.
    ///
    /// The `name` says what excludes what. With the name of the job (`report`) a tick is skipped while the work
    /// of an earlier one runs. With the tick in it (`report@2026-11-22T02:00Z`, the time that the schedule
    /// names, and not that of the clock) ticks may overlap.
    ///
    /// A process that is killed leaves its tick undone: its lock is free after the ttl, and the next tick is
    /// run by another process.
    ///
    /// ```
    /// use std::time::Duration;
    /// # use lockkeeper_core as lockkeeper;
    /// use lockkeeper::{Error, LockKeeper};
    ///
    /// fn at_two(keeper: &LockKeeper, report: impl FnOnce()) -> Result<bool, Error> {
    ///     let ran = keeper.run_tick("report", Duration::from_secs(10), |_guard| report())?;
    ///     Ok(ran.is_some())
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`try_lock`](Self::try_lock), and [`ErrorKind::InvalidValue`] if the keeper's `max_hold` is shorter than
    /// `at_least`; `work` was not called.
    pub fn run_tick<T>(
        &self,
        name: impl AsLockName,
        at_least: Duration,
        work: impl FnOnce(&LockGuard) -> T,
    ) -> Result<Option<T>, Error> {
        let settings = &self.engine.settings;
        if let Some(max_hold) = settings.max_hold.filter(|max_hold| *max_hold < at_least) {
            let text = format!(
                "the keeper's max_hold of {max_hold:?} would end the lock before {at_least:?} are over; hold the tick for less, or use a keeper with a longer max_hold"
            );
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        // A fixed lease may be shorter.
        let ttl = settings.lease.ttl();
        let options = AcquireOptions::new().lease(LeasePolicy::Renewed { ttl });
        let Some(guard) = self.acquire(name, &options.wait(Duration::ZERO))? else {
            return Ok(None);
        };
        let _end = TickEnd {
            until: self.engine.clock.now() + at_least,
            leader: Leader::new(&guard, self.engine.ending(None)),
        };
        Ok(Some(work(&guard)))
    }
}

/// Pauses until a tick was held long enough when it is dropped: also if its work panics.
struct TickEnd<'a> {
    until: HostInstant,
    leader: Leader<'a>,
}

impl Drop for TickEnd<'_> {
    fn drop(&mut self) {
        let now = self.leader.guard.engine().clock.now();
        self.leader.pause(self.until.saturating_since(now));
    }
}

/// A term of leadership: the guard of the lock, whose methods it has.
pub struct Leader<'a> {
    guard: &'a LockGuard,
    cancel: CancelToken,
    /// Unparked when the lock is lost, and on a cancel.
    parker: Parker,
    _wake: CancelRegistration,
}

impl<'a> Leader<'a> {
    fn new(guard: &'a LockGuard, cancel: CancelToken) -> Self {
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        guard.lost_signal().on_lost(move || unparker.unpark());
        let unparker = parker.unparker().clone();
        let _wake = cancel.on_cancel(move || unparker.unpark());
        Self {
            guard,
            cancel,
            parker,
            _wake,
        }
    }

    /// Returns whether this process leads and should go on. It does until the lock is lost, the keeper is
    /// closed, or the options' token is cancelled.
    pub fn leads(&self) -> bool {
        self.guard.is_held() && !self.cancel.is_cancelled()
    }

    /// Blocks for `limit`, or until this process no longer [leads](Self::leads). Returns whether it does.
    pub fn pause(&self, limit: Duration) -> bool {
        let clock = &self.guard.engine().clock;
        let until = clock.now() + limit;
        loop {
            let left = until.saturating_since(clock.now());
            if !self.leads() || left.is_zero() {
                return self.leads();
            }
            // A time-out does not advance while the host is suspended.
            self.parker.park_timeout(left.min(MAX_SLEEP));
        }
    }
}

impl Deref for Leader<'_> {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        self.guard
    }
}

impl fmt::Debug for Leader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Leader").field(self.guard).finish()
    }
}
