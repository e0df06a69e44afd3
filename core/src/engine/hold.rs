//! One lease while this process has it: its local deadline, its guards one after the other, and the
//! provider's lease.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::{Clock, HostInstant};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::options::LeasePolicy;
use crate::provider::{ErasedLease, Renewal};
use crate::sync::{lock, wait};
use crate::timer::MAX_SLEEP;
use crate::token::FencingToken;

/// `until` of a lease that is lost; it never counts again.
const LOST: u64 = 0;
/// `until` of a lease that went back to the store.
const OVER: u64 = u64::MAX;

pub(crate) type OnLost = Box<dyn FnOnce() + Send>;

/// A lease and its guards, one after the other: hand-over makes it the next waiter's `handovers`.
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) policy: LeasePolicy,
    margin: Duration,
    epoch: u64,
    /// When the store granted it to this process.
    began: HostInstant,
    /// Nanoseconds of the local deadline, or `LOST` or `OVER`. All changes are compare-and-swap,
    /// so a guard that has once called itself lost stays so.
    until: AtomicU64,
    /// Which guard it belongs to: the number of hand-overs so far.
    handovers: AtomicU32,
    /// When it is to be renewed next, in nanoseconds; `u64::MAX` while a renewal is under way.
    pub(crate) renew_at: AtomicU64,
    is_loss_notified: AtomicBool,
    inside: Mutex<Inside>,
    /// The lease came back, or a guard of it is lost or over.
    changed: Condvar,
}

struct Inside {
    lease: LeaseSlot,
    /// With the turn of the guard that each belongs to.
    on_lost: Vec<(u32, OnLost)>,
    /// Threads that wait for `changed`: a wake-up without a waiter would cost a system call on every release.
    waiting: usize,
}

enum LeaseSlot {
    Here(ErasedLease),
    /// A renewal has it. With `true` it is released as soon as it returns.
    Away(bool),
    Gone,
}

impl Inside {
    /// Takes the lease out for a renewal, if it is here.
    fn take(&mut self) -> Option<ErasedLease> {
        match std::mem::replace(&mut self.lease, LeaseSlot::Away(false)) {
            LeaseSlot::Here(lease) => Some(lease),
            other => {
                self.lease = other;
                None
            }
        }
    }
}

/// The lease is not here any more.
pub(crate) struct Gone;

/// What a guard that is done leaves.
pub(crate) struct Ended {
    /// It was held until now.
    pub(crate) in_time: bool,
    /// `None`: a renewal has it, or it was released.
    pub(crate) lease: Option<ErasedLease>,
    /// To be dropped with no lock held: it is the caller's code.
    pub(crate) callbacks: Vec<(u32, OnLost)>,
}

/// How a guard stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldState {
    Held,
    Lost,
    Over,
}

impl Hold {
    pub(crate) fn new(
        name: LockName,
        policy: LeasePolicy,
        margin: Duration,
        lease: ErasedLease,
        epoch: u64,
        asked_at: HostInstant,
        now: HostInstant,
    ) -> Self {
        let until = asked_at + policy.ttl() - margin;
        let hold = Self {
            name,
            policy,
            margin,
            epoch,
            began: now,
            until: AtomicU64::new(until.as_nanos().clamp(LOST + 1, OVER - 1)),
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
        hold.schedule(asked_at);
        hold
    }

    /// The token of the guard after `handovers` hand-overs.
    pub(crate) fn token(&self, handovers: u32) -> Result<FencingToken, Error> {
        FencingToken::new(self.epoch, handovers)
    }

    /// A third of the ttl after the store was asked, the lease is renewed.
    fn schedule(&self, asked_at: HostInstant) {
        if self.policy.is_renewed() {
            let at = asked_at + self.policy.ttl() / 3;
            self.renew_at.store(at.as_nanos(), Ordering::Release);
        }
    }

    /// After a renewal without an answer: soon again.
    fn retry(&self, now: HostInstant) {
        if self.policy.is_renewed() {
            let at = now + self.policy.ttl() / 12;
            self.renew_at.store(at.as_nanos(), Ordering::Release);
        }
    }

    /// When the engine has to look at it next.
    pub(crate) fn due(&self) -> u64 {
        let until = self.until.load(Ordering::Acquire);
        until.min(self.renew_at.load(Ordering::Acquire))
    }

    pub(crate) fn until(&self) -> HostInstant {
        HostInstant::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// How the guard after `handovers` hand-overs stands.
    pub(crate) fn standing(&self, handovers: u32, now: HostInstant) -> HoldState {
        if self.handovers.load(Ordering::Acquire) == handovers {
            self.state(now)
        } else {
            HoldState::Over
        }
    }

    /// Returns the state of the lease, whichever guard has it. From its deadline on it is lost: the
    /// first caller that sees the deadline passed makes it so.
    pub(crate) fn state(&self, now: HostInstant) -> HoldState {
        loop {
            match self.until.load(Ordering::Acquire) {
                LOST => return HoldState::Lost,
                OVER => return HoldState::Over,
                until if now.as_nanos() < until => return HoldState::Held,
                until => {
                    if self.replace_until(until, LOST) {
                        self.announce();
                        return HoldState::Lost;
                    }
                }
            }
        }
    }

    fn replace_until(&self, old: u64, new: u64) -> bool {
        self.until
            .compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The store says so: lost, whatever the clock says.
    pub(crate) fn lose(&self) {
        loop {
            match self.until.load(Ordering::Acquire) {
                LOST | OVER => return,
                until if self.replace_until(until, LOST) => return self.announce(),
                _ => {}
            }
        }
    }

    /// Wakes the threads that wait for a change. Under the mutex, so that none misses it.
    fn announce(&self) {
        self.notify(&lock(&self.inside));
    }

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
        // Few threads wait here, so each looks at the clock by itself.
        inside = wait(&self.changed, inside, Some(limit.min(MAX_SLEEP)));
        inside.waiting -= 1;
        inside
    }

    /// Whether the loss still has to be told; true once.
    pub(crate) fn must_notify_loss(&self) -> bool {
        !self.is_loss_notified.swap(true, Ordering::AcqRel)
    }

    /// Moves the deadline after a renewal that was asked for at `asked_at`, unless it has passed.
    fn extend(&self, asked_at: HostInstant, clock: &dyn Clock) {
        let new = (asked_at + self.policy.ttl() - self.margin)
            .as_nanos()
            .clamp(LOST + 1, OVER - 1);
        loop {
            let old = self.until.load(Ordering::Acquire);
            if self.state(clock.now()) != HoldState::Held
                || new <= old
                || self.replace_until(old, new)
            {
                return;
            }
        }
    }

    /// Takes the lease out for a renewal, with the renewal's deadline. `None`: it is away already,
    /// lost, or over.
    pub(crate) fn take_to_renew(&self, clock: &dyn Clock) -> Option<(ErasedLease, HostInstant)> {
        let mut inside = lock(&self.inside);
        // While the lease is here the guard is not over, so the deadline is one that comes.
        let until = self.until();
        if clock.now() >= until {
            return None;
        }
        Some((inside.take()?, until))
    }

    /// Does the same for a caller. Waits for a renewal that is under way, at most until the lease is
    /// over.
    pub(crate) fn wait_to_renew(
        &self,
        clock: &dyn Clock,
    ) -> Result<(ErasedLease, HostInstant), Gone> {
        let (mut inside, until) = self.wait_for_lease(clock)?;
        Ok((inside.take().ok_or(Gone)?, until))
    }

    /// Returns what `read` finds in the lease. Waits for a renewal that has it, at most until the
    /// lease is over.
    pub(crate) fn read<R>(
        &self,
        clock: &dyn Clock,
        read: impl FnOnce(&ErasedLease) -> R,
    ) -> Result<R, Gone> {
        match &self.wait_for_lease(clock)?.0.lease {
            LeaseSlot::Here(lease) => Ok(read(lease)),
            LeaseSlot::Away(_) | LeaseSlot::Gone => Err(Gone),
        }
    }

    /// Waits until the lease is here, at most until it is over. Returns the deadline, too.
    fn wait_for_lease(
        &self,
        clock: &dyn Clock,
    ) -> Result<(MutexGuard<'_, Inside>, HostInstant), Gone> {
        let mut inside = lock(&self.inside);
        loop {
            let until = self.until();
            let left = until.saturating_since(clock.now());
            match &inside.lease {
                _ if left.is_zero() => return Err(Gone),
                LeaseSlot::Here(_) => return Ok((inside, until)),
                LeaseSlot::Away(_) => inside = self.wait_for_change(inside, left),
                LeaseSlot::Gone => return Err(Gone),
            }
        }
    }

    /// Brings the lease back from a renewal, with the store's answer. A lease without a use
    /// any more comes out again, to be released.
    pub(crate) fn bring_back(
        &self,
        lease: ErasedLease,
        answer: &Result<Renewal, Error>,
        asked_at: HostInstant,
        clock: &dyn Clock,
    ) -> Option<ErasedLease> {
        match answer {
            Ok(Renewal::Renewed) => self.extend(asked_at, clock),
            Ok(Renewal::Lost) => self.lose(),
            Err(_) => {}
        }
        let mut inside = lock(&self.inside);
        // Renewed in the store after the guard had called itself lost: it would block the name for
        // another ttl without a guard. (A guard that is over has a release waiting for the lease.)
        let late =
            matches!(answer, Ok(Renewal::Renewed)) && self.until.load(Ordering::Acquire) == LOST;
        let back = if late || matches!(inside.lease, LeaseSlot::Away(true)) {
            inside.lease = LeaseSlot::Gone;
            Some(lease)
        } else {
            inside.lease = LeaseSlot::Here(lease);
            None
        };
        // Only now: a renewal that is due before the lease is here would not find it, and there
        // would be no other.
        match answer {
            Ok(Renewal::Renewed) => self.schedule(asked_at),
            Ok(Renewal::Lost) => {}
            Err(_) => self.retry(clock.now()),
        }
        self.notify(&inside);
        back
    }

    /// Takes the lease out for good. Waits until `deadline` for a renewal that has it; after that
    /// it is released when it comes back, and this is `Err`.
    pub(crate) fn take_to_release(
        &self,
        deadline: HostInstant,
        clock: &dyn Clock,
    ) -> Result<Option<ErasedLease>, Error> {
        let mut inside = lock(&self.inside);
        loop {
            match std::mem::replace(&mut inside.lease, LeaseSlot::Gone) {
                LeaseSlot::Here(lease) => return Ok(Some(lease)),
                LeaseSlot::Gone => return Ok(None),
                LeaseSlot::Away(_) => {
                    let left = deadline.saturating_since(clock.now());
                    inside.lease = LeaseSlot::Away(left.is_zero());
                    if left.is_zero() {
                        return Err(Error::new(
                            ErrorKind::Unknown,
                            "a renewal is still without an answer; the lock is released when it \
                             returns, and by the store after its ttl at the latest",
                        )
                        .with_name(&self.name));
                    }
                    inside = self.wait_for_change(inside, left);
                }
            }
        }
    }

    /// The guard gives the lease back: nothing is renewed or told from here on. All in one, since
    /// every release comes through here.
    pub(crate) fn end(&self, now: HostInstant) -> Ended {
        let mut inside = lock(&self.inside);
        let in_time = loop {
            let until = self.until.load(Ordering::Acquire);
            if until == LOST || until == OVER || now.as_nanos() >= until {
                break false;
            }
            if self.replace_until(until, OVER) {
                break true;
            }
        };
        // Of a guard that was lost before, the loss may still have to be is_loss_notified.
        let callbacks = if in_time {
            std::mem::take(&mut inside.on_lost)
        } else {
            Vec::new()
        };
        let lease = match std::mem::replace(&mut inside.lease, LeaseSlot::Gone) {
            LeaseSlot::Here(lease) => Some(lease),
            other => {
                inside.lease = other;
                None
            }
        };
        self.notify(&inside);
        Ended {
            in_time,
            lease,
            callbacks,
        }
    }

    /// Whether the lease can be handed over to a waiter that wishes for `policy`, by what it has
    /// left and how long this process has had it in a row.
    pub(crate) fn fits(&self, policy: LeasePolicy, now: HostInstant, bounds: &Bounds) -> bool {
        let until = self.until.load(Ordering::Acquire);
        self.policy == policy
            && policy.is_renewed()
            && self.handovers.load(Ordering::Acquire) < bounds.count
            && now.saturating_since(self.began) < bounds.time
            && until != LOST
            && until != OVER
            && HostInstant::from_nanos(until).saturating_since(now) > policy.ttl() / 3
    }

    /// Makes it the next guard's.
    pub(crate) fn count_handover(&self) {
        self.handovers.fetch_add(1, Ordering::AcqRel);
    }

    /// After a hand-over: wakes the threads that wait for the loss of the guard before, and takes what
    /// was to be called then.
    pub(crate) fn end_handover(&self, handovers: u32) -> Vec<(u32, OnLost)> {
        let mut inside = lock(&self.inside);
        self.notify(&inside);
        if inside.on_lost.is_empty() {
            return Vec::new();
        }
        let (ended, kept) = std::mem::take(&mut inside.on_lost)
            .into_iter()
            .partition(|(of, _)| *of <= handovers);
        inside.on_lost = kept;
        ended
    }

    pub(crate) fn handovers(&self) -> u32 {
        self.handovers.load(Ordering::Acquire)
    }

    /// Takes what was to be called when the guard that has it now, or an earlier one, is lost.
    pub(crate) fn take_callbacks(&self) -> Vec<(u32, OnLost)> {
        std::mem::take(&mut lock(&self.inside).on_lost)
    }

    /// Has `callback` called when the guard after `handovers` hand-overs is lost; gives it back where it is already.
    pub(crate) fn on_lost(
        &self,
        handovers: u32,
        callback: OnLost,
        clock: &dyn Clock,
    ) -> Option<OnLost> {
        match self.standing(handovers, clock.now()) {
            HoldState::Over => return None,
            HoldState::Lost => return Some(callback),
            HoldState::Held => {}
        }
        let mut inside = lock(&self.inside);
        // The loss was reported in between, and the callbacks were taken.
        if self.is_loss_notified.load(Ordering::Acquire) {
            return Some(callback);
        }
        inside.on_lost.push((handovers, callback));
        None
    }

    /// Blocks until the guard after `handovers` hand-overs is lost or over, at most until `deadline`.
    pub(crate) fn wait_until_lost(
        &self,
        handovers: u32,
        deadline: HostInstant,
        clock: &dyn Clock,
    ) -> HoldState {
        loop {
            let now = clock.now();
            let standing = self.standing(handovers, now);
            if standing != HoldState::Held || now >= deadline {
                return standing;
            }
            let inside = lock(&self.inside);
            let until = self.until.load(Ordering::Acquire);
            if until != LOST && until != OVER && self.handovers.load(Ordering::Acquire) == handovers
            {
                let left = deadline
                    .min(HostInstant::from_nanos(until))
                    .saturating_since(now);
                drop(self.wait_for_change(inside, left));
            }
        }
    }
}

/// How long a process may keep a name to itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) count: u32,
    pub(crate) time: Duration,
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name)
            .field("until", &self.until())
            .field("turn", &self.handovers())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::clock::ManualClock;

    /// The answer took so long that the next renewal is due at once.
    #[test]
    fn no_renewal_is_due_before_the_lease_is_back() {
        let (clock, ttl) = (ManualClock::new(), Duration::from_secs(12));
        let (asked_at, policy) = (clock.now(), LeasePolicy::Renewed { ttl });
        let name = LockName::new("a").unwrap();
        let hold = Hold::new(
            name,
            policy,
            Duration::ZERO,
            ErasedLease::new(()),
            1,
            asked_at,
            asked_at,
        );
        let (lease, until) = hold.take_to_renew(&clock).unwrap();
        hold.renew_at.store(u64::MAX, Ordering::SeqCst);
        clock.advance(ttl / 2);
        let asked_at = asked_at + ttl / 8;
        // The lease cannot come back while this is locked.
        let inside = lock(&hold.inside);
        let answer = Ok(Renewal::Renewed);
        thread::scope(|scope| {
            let back = scope.spawn(|| hold.bring_back(lease, &answer, asked_at, &clock));
            while hold.until() == until {
                thread::yield_now();
            }
            // Time to do it wrong; a test that is too quick sees less, and fails no more for it.
            for _ in 0..1_000 {
                thread::yield_now();
            }
            let early = hold.renew_at.load(Ordering::SeqCst) != u64::MAX;
            drop(inside);
            assert!(back.join().unwrap().is_none());
            assert!(!early, "a renewal that comes now finds no lease");
        });
        let due = HostInstant::from_nanos(hold.renew_at.load(Ordering::SeqCst));
        assert!(due <= clock.now() && hold.take_to_renew(&clock).is_some());
    }
}
