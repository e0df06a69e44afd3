//! One lease while this process has it: its local deadline, the provider's lease, and the guards
//! that have it one after the other.

pub(crate) mod acquired;
pub(crate) mod lease;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::HostInstant;
use crate::name::LockName;
use crate::options::{LeasePolicy, Settings};
use crate::provider::ErasedLease;
use crate::sync::{lock, wait};
use crate::timer::MAX_SLEEP;
use crate::token::FencingToken;

use super::deadline::Deadline;
pub(crate) use super::deadline::HoldState;

/// Callbacks of a loss, each with the number of hand-overs before the guard that it belongs to.
pub(crate) type Callbacks = Vec<(u32, Box<dyn FnOnce() + Send>)>;

/// A lease and its guards; a hand-over gives it to the next guard.
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) policy: LeasePolicy,
    margin: Duration,
    /// The token of the first guard.
    first_token: FencingToken,
    /// When the store granted the lease to this process.
    granted_at: HostInstant,
    deadline: Deadline,
    /// The number of hand-overs so far, which distinguishes the guards.
    handovers: AtomicU32,
    /// When the lease is renewed next, in nanoseconds; `u64::MAX` while a renewal is under way.
    renew_at: AtomicU64,
    is_loss_notified: AtomicBool,
    inside: Mutex<Inside>,
    /// Notified when the lease comes back, and when a guard is lost or released.
    changed: Condvar,
}

struct Inside {
    lease: LeaseSlot,
    on_lost: Callbacks,
    /// Threads that wait for `changed`: notifying it without a waiter would cost a system call on
    /// every release.
    waiting: usize,
}

enum LeaseSlot {
    Here(ErasedLease),
    /// A renewal has the lease.
    Away {
        /// Whether the lease is released as soon as it comes back.
        is_unwanted: bool,
    },
    Gone,
}

impl Hold {
    /// A hold of a lease that was asked for at `asked_at`, and granted by `now`.
    pub(crate) fn new(
        name: LockName,
        policy: LeasePolicy,
        margin: Duration,
        lease: ErasedLease,
        first_token: FencingToken,
        asked_at: HostInstant,
        now: HostInstant,
    ) -> Self {
        let hold = Self {
            name,
            policy,
            margin,
            first_token,
            granted_at: now,
            deadline: Deadline::new(asked_at + policy.ttl() - margin),
            handovers: AtomicU32::new(0),
            renew_at: AtomicU64::new(u64::MAX),
            is_loss_notified: AtomicBool::new(false),
            inside: Mutex::new(Inside {
                lease: LeaseSlot::Here(lease),
                on_lost: Vec::new(),
                waiting: 0,
            }),
            changed: Condvar::new(),
        };
        hold.schedule_renewal(asked_at + policy.ttl() / 3);
        hold
    }

    /// Returns the time until which the lease is held without another renewal.
    pub(crate) fn until(&self) -> HostInstant {
        self.deadline.get()
    }

    /// Returns the state of the lease, whichever guard has it. The first caller that sees the
    /// deadline passed makes the lease lost.
    pub(crate) fn state(&self, now: HostInstant) -> HoldState {
        loop {
            if let Some(state) = self.deadline.state(now) {
                return state;
            }
            if self.deadline.expire(now) {
                self.notify(&lock(&self.inside));
            }
        }
    }

    /// Makes the lease lost because the store says so, whatever the clock says.
    pub(crate) fn lose(&self) {
        if self.deadline.lose() {
            self.notify(&lock(&self.inside));
        }
    }

    /// Returns whether the caller is the one that has to report the loss; true once.
    pub(crate) fn must_notify_loss(&self) -> bool {
        !self.is_loss_notified.swap(true, Ordering::AcqRel)
    }

    /// Sets when the lease is renewed next. A fixed lease never is.
    fn schedule_renewal(&self, at: HostInstant) {
        if self.policy.is_renewed() {
            self.renew_at.store(at.as_nanos(), Ordering::Release);
        }
    }

    /// Makes a renewal due, also of a fixed lease.
    pub(crate) fn doubt(&self) {
        self.renew_at.store(0, Ordering::Release);
    }

    /// Returns for how long a renewal of the keeper asks at `now`: a fixed lease ends when it would
    /// have ended.
    pub(crate) fn renewal_ttl(&self, now: HostInstant) -> Duration {
        match self.policy.is_renewed() {
            true => self.policy.ttl(),
            false => (self.until() + self.margin).saturating_since(now),
        }
    }

    /// Returns whether the caller has to renew the lease, because that is due `by` then.
    pub(crate) fn take_due_renewal(&self, by: HostInstant) -> bool {
        let is_due = self.renew_at.load(Ordering::Acquire) <= by.as_nanos();
        if is_due {
            self.renew_at.store(u64::MAX, Ordering::Release);
        }
        is_due
    }

    /// Returns when the next renewal or the deadline is due, in nanoseconds.
    pub(crate) fn due(&self) -> u64 {
        let renew_at = self.renew_at.load(Ordering::Acquire);
        renew_at.min(self.until().as_nanos())
    }

    /// Hands the lease over to a waiter that wants `policy`, if it serves that policy, has enough
    /// time left, and was handed over neither too often nor for too long.
    pub(crate) fn hand_over(
        &self,
        policy: LeasePolicy,
        now: HostInstant,
        settings: &Settings,
    ) -> bool {
        let fits = self.policy == policy
            && policy.is_renewed()
            && self.handovers.load(Ordering::Acquire) < settings.handover_max
            && now.saturating_since(self.granted_at) < settings.handover_time
            && self.deadline.state(now) == Some(HoldState::Held)
            && self.until().saturating_since(now) > policy.ttl() / 3;
        if fits {
            self.handovers.fetch_add(1, Ordering::AcqRel);
        }
        fits
    }

    /// Wakes the threads that wait for a change. `inside` is locked, so that none misses it.
    fn notify(&self, inside: &Inside) {
        if inside.waiting > 0 {
            self.changed.notify_all();
        }
    }

    fn wait_for_change<'a>(
        &self,
        mut inside: MutexGuard<'a, Inside>,
        limit: Duration,
    ) -> MutexGuard<'a, Inside> {
        inside.waiting += 1;
        // Few threads wait here, so each checks the clock by itself.
        inside = wait(&self.changed, inside, Some(limit.min(MAX_SLEEP)));
        inside.waiting -= 1;
        inside
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name)
            .field("until", &self.until())
            .field("handovers", &self.handovers)
            .finish_non_exhaustive()
    }
}
