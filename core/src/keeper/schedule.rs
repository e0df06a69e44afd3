//! Work that one of many processes does: as a leader, or at each tick of a schedule.

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
    /// Makes this process the leader while it holds the lock of `name`. It calls `work` after each grant,
    /// and acquires the lock again when `work` returns `Continue`.
    ///
    /// The call blocks its thread, so use a thread of its own. It waits for the lock without a limit, also
    /// through outages. [`Leader::pause`] returns false when the lock is lost: then another process may lead, and
    /// `work` must return. `Break` and a panic end the call. Whenever `work` ends, the lock is released, and
    /// another process can lead.
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
    /// [`ErrorKind::Cancelled`] after [`close`](Self::close), and errors that are not
    /// [retryable](Error::is_retryable).
    pub fn lead<T>(
        &self,
        name: impl AsLockName,
        work: impl FnMut(&Leader<'_>) -> ControlFlow<T>,
    ) -> Result<T, Error> {
        self.lead_with(name, &AcquireOptions::new(), work)
    }

    /// Leads as [`lead`](Self::lead) does, with options, such as a lease policy or a [`CancelToken`] that
    /// ends the leadership. The wait of the options is ignored.
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

    /// Runs `work` for one tick of a schedule, unless another process runs it or has just run it. Then
    /// `work` is not called, and the result is `None`.
    ///
    /// All processes call it at each tick, and each makes one attempt. If the store cannot be reached, the attempt goes on
    /// for as long as the keeper's `wait`, at most for `at_least`, unless `outage=fail`, but never for less than the time of
    /// a [`try_lock`](Self::try_lock). So an outage of some seconds costs no tick. If the reply to an attempt is lost, the store is asked again under the same owner. The lock is held for at least `at_least`
    /// from the grant, also if `work` returns sooner or panics. A process with a slow clock, or a busy one, calls
    /// later, and must still find the lock held. So choose `at_least` longer than clocks may differ and than a
    /// process may be late, and shorter than the time between two ticks. A process that is even later gets the
    /// lock, since nothing remembers which ticks were run. So let `work` compare the clock with the tick, and skip
    /// a tick that is long past. The call returns when `work` has returned and `at_least` is over, or when the
    /// keeper is closed. The lease is renewed, whatever the keeper's policy is.
    ///
    /// The `name` decides which ticks exclude each other. With the job's name (`report`), a tick is skipped
    /// while the work of an earlier tick runs. With the tick's scheduled time in the name
    /// (`report@2026-11-22T02:00Z`), ticks may overlap.
    ///
    /// If the process is killed, its tick stays undone. The lock is free after the ttl, and another process
    /// runs the next tick.
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
        let name = name.as_lock_name()?;
        let began = self.engine.clock.now();
        let Some(acquired) = self
            .engine
            .attempt_through_outage(&name, &options, began, at_least)?
        else {
            return Ok(None);
        };
        let guard = self.guard(acquired);
        let _end = TickEnd {
            until: self.engine.clock.now() + at_least,
            leader: Leader::new(&guard, self.engine.ending(None)),
        };
        Ok(Some(work(&guard)))
    }
}

/// Pauses in its drop until the tick's lock was held for long enough, also if the work panics.
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

/// A term of leadership. It has the methods of the lock's guard.
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

    /// Blocks for `limit`, or until this process no longer [leads](Self::leads). Returns whether it still
    /// leads.
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
