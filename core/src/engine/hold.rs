//! One lease while this process has it: its local deadline, the provider's lease, and the guards
//! that have it one after the other.
//!
//! A hand-over does not move the lease: guards are numbered hand-overs of one hold, so a renewal under way delays
//! none. A fixed lease counts from its own grant, so it is never handed over.

pub(crate) mod acquired;
pub(crate) mod lease;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::clock::{HostInstant, saturating_nanos};
use crate::contract::provider::{ErasedLease, Grant};
use crate::engine::timer::MAX_SLEEP;
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::{LeasePolicy, LeaseTerms, Settings};
use crate::process::process_id;
use crate::sync::{lock, wait};
use crate::token::FencingToken;

use super::deadline::Deadline;
pub(crate) use super::deadline::HoldState;
use super::key::Key;

use lease::LeaseSlot;

/// Callbacks of a loss, each with the number of hand-overs before the guard that it belongs to.
pub(crate) type Callbacks = Vec<(u32, Box<dyn FnOnce() + Send>)>;

/// A lease and its guards; a hand-over gives it to the next guard.
pub(crate) struct Hold {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
    /// The slot of a permit.
    pub(crate) slot: u32,
    /// The part of the store that granted the lease.
    pub(crate) part: usize,
    /// The process that was granted the lease.
    pub(crate) process: u32,
    pub(crate) policy: LeasePolicy,
    margin: Duration,
    /// Whether another process may resume the lease, so that it is handed over to no other guard.
    is_resumed: bool,
    /// The token of the first guard.
    first_token: FencingToken,
    /// When the store granted the lease to this process.
    granted_at: HostInstant,
    deadline: Deadline,
    /// The number of hand-overs so far: that of the latest guard, the first one has 0.
    handovers: AtomicU32,
    /// The guards that have ended while the lease went on, a bit for each number.
    ended: [AtomicU64; 2],
    /// When the lease is renewed next, in nanoseconds; `u64::MAX` while a renewal is under way.
    renew_at: AtomicU64,
    /// Whether the last renewal got no answer.
    is_failing: AtomicBool,
    /// The longest time for which the keeper renews the lease for its guard, in nanoseconds; `u64::MAX`
    /// without a limit.
    max_hold: AtomicU64,
    /// When that time is over, in nanoseconds; 0 once the keeper has stopped to renew the lease.
    renewed_until: AtomicU64,
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

impl Hold {
    /// A hold of a lease that was granted by `now`.
    pub(crate) fn new(
        name: LockName,
        terms: LeaseTerms,
        margin: Duration,
        grant: Grant<ErasedLease>,
        first_token: FencingToken,
        now: HostInstant,
    ) -> Self {
        let policy = terms.policy;
        let hold = Self {
            name,
            mode: terms.mode,
            slot: grant.slot,
            part: grant.lease.part,
            process: process_id(),
            policy,
            margin,
            is_resumed: false,
            first_token,
            granted_at: now,
            deadline: Deadline::new(grant.asked_at + policy.ttl() - margin),
            handovers: AtomicU32::new(0),
            ended: Default::default(),
            renew_at: AtomicU64::new(u64::MAX),
            is_failing: AtomicBool::new(false),
            max_hold: AtomicU64::new(u64::MAX),
            renewed_until: AtomicU64::new(u64::MAX),
            is_loss_notified: AtomicBool::new(false),
            inside: Mutex::new(Inside {
                lease: LeaseSlot::Here(grant.lease),
                on_lost: Vec::new(),
                waiting: 0,
            }),
            changed: Condvar::new(),
        };
        if let Some(at) = hold.next_renewal(grant.asked_at) {
            hold.renew_at.store(at.as_nanos(), Ordering::Release);
        }
        hold.begin_max_hold(terms.max_hold, now);
        hold
    }

    /// Returns the hold of a lease that was resumed.
    pub(crate) fn resumed(self) -> Self {
        Self {
            is_resumed: true,
            ..self
        }
    }

    /// Returns what threads queue for that want such a lease.
    pub(crate) fn key(&self) -> Key<'_> {
        Key::new(&self.name, self.mode)
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

    /// Returns when the lease is renewed after a grant or a renewal that was asked for at `asked_at`. A
    /// fixed lease is not.
    fn next_renewal(&self, asked_at: HostInstant) -> Option<HostInstant> {
        let is_renewed = self.policy.is_renewed();
        let ttl = self.policy.ttl();
        // A large margin still leaves time to repeat the renewal.
        is_renewed.then_some(asked_at + (ttl / 3).min((ttl - self.margin) / 2))
    }

    /// Sets how long the keeper renews the lease for the guard that gets it at `now`.
    fn begin_max_hold(&self, max_hold: Option<Duration>, now: HostInstant) {
        let max_hold = max_hold.map_or(u64::MAX, saturating_nanos);
        self.max_hold.store(max_hold, Ordering::Release);
        self.restart_max_hold(now);
    }

    /// Restarts the time for which the keeper renews the lease.
    fn restart_max_hold(&self, now: HostInstant) {
        let max_hold = self.max_hold.load(Ordering::Acquire);
        let until = now.as_nanos().saturating_add(max_hold);
        self.renewed_until.store(until, Ordering::Release);
    }

    /// Returns whether the keeper prolongs the lease at `now`.
    fn is_prolonged(&self, now: HostInstant) -> bool {
        self.policy.is_renewed() && now.as_nanos() < self.renewed_until.load(Ordering::Acquire)
    }

    /// Makes a renewal due, also of a lease that is not prolonged.
    pub(crate) fn doubt(&self) {
        self.renew_at.store(0, Ordering::Release);
    }

    /// Returns for how long a renewal of the keeper asks at `now`: a lease that is not prolonged ends
    /// when it would have ended. `until` is its deadline as it was when the renewal took it: the guard may have ended since.
    pub(crate) fn renewal_ttl(&self, now: HostInstant, until: HostInstant) -> Duration {
        match self.is_prolonged(now) {
            true => self.policy.ttl(),
            false => (until + self.margin).saturating_since(now),
        }
    }

    /// Returns whether the caller has to renew the lease, because that is due at `now`, or will be within
    /// `ahead`. A renewal that got no answer is not repeated ahead of its time.
    ///
    /// It stops the renewals when the guard has had the lease for its longest time. The queue's mutex
    /// is locked, as for [`hand_over`](Self::hand_over).
    pub(crate) fn take_due_renewal(&self, now: HostInstant, ahead: Duration) -> bool {
        let is_failing = self.is_failing.load(Ordering::Acquire);
        let by = now + if is_failing { Duration::ZERO } else { ahead };
        let renew_at = self.renew_at.load(Ordering::Acquire);
        if renew_at > by.as_nanos() {
            return false;
        }
        let until = self.renewed_until.load(Ordering::Acquire);
        let verifies = renew_at == 0 || is_failing;
        // The holder may renew the lease at this moment, and that begins a new time.
        let replace = |value: &AtomicU64, old, new| {
            let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
            value.compare_exchange(old, new, set, fetch).is_ok()
        };
        if !verifies && now.as_nanos() >= until {
            if replace(&self.renewed_until, until, 0) {
                replace(&self.renew_at, renew_at, u64::MAX);
            }
            return false;
        }
        self.renew_at.store(u64::MAX, Ordering::Release);
        true
    }

    /// Returns when the next renewal or the deadline is due, in nanoseconds.
    pub(crate) fn due(&self) -> u64 {
        let renew_at = self.renew_at.load(Ordering::Acquire);
        renew_at.min(self.until().as_nanos())
    }

    /// Hands the lease over to a guard with these terms, if it serves their mode and policy. It also has to be
    /// prolonged still, with enough time left, and was handed over neither too often nor for too long. Returns the
    /// number of the guard.
    pub(crate) fn hand_over(
        &self,
        terms: LeaseTerms,
        now: HostInstant,
        settings: &Settings,
    ) -> Option<u32> {
        if self.mode != terms.mode || self.policy != terms.policy {
            return None;
        }
        let least_left = self.policy.ttl() / 3;
        let may_go_on = !self.is_resumed
            && self.is_prolonged(now)
            && self.handovers.load(Ordering::Acquire) < settings.handover_max
            && now < self.granted_at + settings.handover_time
            && self.deadline.state(now + least_left) == Some(HoldState::Held);
        // Several guards may have a shared lease, and each relies on its own longest time.
        let max_hold = terms.max_hold.map_or(u64::MAX, saturating_nanos);
        let is_same = max_hold == self.max_hold.load(Ordering::Acquire);
        if !may_go_on || (self.mode == Mode::Shared && !is_same) {
            return None;
        }
        self.begin_max_hold(terms.max_hold, now);
        Some(self.handovers.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// Records that the guard with this number has ended, and others have the lease, or will.
    pub(crate) fn end_guard(&self, number: u32) {
        if let Some(ended) = self.ended.get(number as usize / 64) {
            ended.fetch_or(1 << (number % 64), Ordering::AcqRel);
        }
    }

    /// Returns whether the guard with this number has ended before the lease.
    pub(crate) fn is_ended(&self, number: u32) -> bool {
        let ended = self.ended.get(number as usize / 64);
        ended.is_some_and(|ended| ended.load(Ordering::Acquire) & 1 << (number % 64) != 0)
    }

    /// Returns the numbers of the guards that have the lease.
    pub(crate) fn guards(&self) -> impl Iterator<Item = u32> {
        (0..=self.latest()).filter(|number| !self.is_ended(*number))
    }

    /// Ends the guard that has the hold: from here on nothing is renewed, and no loss is reported. Returns whether the
    /// lock was held until now; the lease, unless a renewal has it or it was released; and the callbacks, to be dropped
    /// with no lock held. It takes one lock for everything, since every release comes through here.
    pub(crate) fn end(&self, now: HostInstant) -> (bool, Option<ErasedLease>, Callbacks) {
        let mut inside = lock(&self.inside);
        let in_time = self.deadline.release(now);
        // The loss of a guard that was lost may still have to be reported.
        let callbacks = if in_time {
            std::mem::take(&mut inside.on_lost)
        } else {
            Vec::new()
        };
        let lease = inside.lease.take(LeaseSlot::Gone);
        self.notify(&inside);
        (in_time, lease, callbacks)
    }

    /// Ends the only guard, whose lease a ticket has now. Returns its callbacks, to be dropped with no lock held. `None`
    /// if the guard is lost.
    pub(crate) fn end_detached(&self, now: HostInstant) -> Option<Callbacks> {
        let mut inside = lock(&self.inside);
        if !self.deadline.release(now) {
            return None;
        }
        inside.lease = LeaseSlot::Gone;
        self.notify(&inside);
        Some(std::mem::take(&mut inside.on_lost))
    }

    /// Takes the callbacks of all guards, to report the loss.
    pub(crate) fn take_callbacks(&self) -> Callbacks {
        std::mem::take(&mut lock(&self.inside).on_lost)
    }

    /// Returns the token of the guard with this number.
    pub(crate) fn token(&self, number: u32) -> FencingToken {
        self.first_token.after_handovers(number)
    }

    /// Returns the number of the latest guard.
    pub(crate) fn latest(&self) -> u32 {
        self.handovers.load(Ordering::Acquire)
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

#[cfg(test)]
impl Hold {
    /// Makes a hold of a lease that is renewed, and that was asked for at `asked_at`.
    fn renewed(ttl: Duration, asked_at: HostInstant) -> Self {
        let terms = LeaseTerms {
            mode: Mode::Exclusive,
            policy: LeasePolicy::Renewed { ttl },
            max_hold: None,
        };
        let grant = Grant {
            lease: ErasedLease::new(()),
            epoch: 1,
            asked_at,
            slot: 0,
        };
        let (name, token) = (
            LockName::new("a").unwrap(),
            FencingToken::new(1, 0).unwrap(),
        );
        Self::new(name, terms, Duration::ZERO, grant, token, asked_at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    use super::acquired::Acquired;
    use super::*;
    use crate::clock::{Clock, ManualClock};

    const LIMIT: Duration = Duration::from_secs(30);
    const TTL: Duration = Duration::from_secs(12);

    fn wait_until_waiting(hold: &Hold, threads: usize) {
        let began = Instant::now();
        while lock(&hold.inside).waiting != threads {
            assert!(began.elapsed() < LIMIT, "{threads} threads should wait");
            thread::yield_now();
        }
    }

    /// A guard is lost half of its ttl after a renewal where the margin is that large.
    #[test]
    fn renewal_leaves_time_to_repeat_it_before_the_deadline() {
        let now = ManualClock::new().now();
        let mut hold = Hold::renewed(TTL, now);
        assert_eq!(hold.next_renewal(now), Some(now + TTL / 3));
        hold.margin = TTL / 2;
        assert_eq!(hold.next_renewal(now), Some(now + TTL / 4));
    }

    /// The threads of [`Hold::wait_for_change`] wake once a second in any case, so another one has to be notified.
    #[test]
    fn threads_that_wait_are_counted_and_each_change_notifies_them() {
        type Change = fn(&Arc<Hold>, HostInstant);
        let changes: [Change; 4] = [
            |hold, _| hold.lose(),
            |hold, now| assert_eq!(hold.state(now + TTL), HoldState::Lost),
            |hold, now| assert!(hold.end(now).0),
            |hold, _| drop(Acquired::first(Arc::clone(hold)).end_handover()),
        ];
        for change in changes {
            let now = ManualClock::new().now();
            let hold = Arc::new(Hold::renewed(TTL, now));
            let is_over = Arc::new(AtomicBool::new(false));
            let (waits, is_over_for_it) = (Arc::clone(&hold), Arc::clone(&is_over));
            let counted = thread::spawn(move || {
                let mut inside = lock(&waits.inside);
                while !is_over_for_it.load(Ordering::SeqCst) {
                    inside = waits.wait_for_change(inside, TTL);
                }
            });
            wait_until_waiting(&hold, 1);
            let waits = Arc::clone(&hold);
            let (tell, told) = channel();
            thread::spawn(move || {
                let mut inside = lock(&waits.inside);
                inside.waiting += 1;
                inside = wait(&waits.changed, inside, None);
                inside.waiting -= 1;
                tell.send(()).unwrap();
            });
            wait_until_waiting(&hold, 2);
            is_over.store(true, Ordering::SeqCst);
            change(&hold, now);
            told.recv_timeout(LIMIT).expect("it is notified");
            counted.join().unwrap();
            wait_until_waiting(&hold, 0);
        }
    }

    #[test]
    fn thread_that_waits_for_the_loss_of_a_guard_sleeps_until_then() {
        let clock = ManualClock::new();
        let hold = Arc::new(Hold::renewed(TTL, clock.now()));
        let guard = Acquired::first(Arc::clone(&hold));
        let waiting = thread::spawn(move || guard.wait_until_lost(HostInstant::NEVER, &clock));
        wait_until_waiting(&hold, 1);
        hold.lose();
        assert_eq!(waiting.join().unwrap(), HoldState::Lost);
    }

    #[test]
    fn lease_is_not_taken_at_its_deadline() {
        let clock = ManualClock::new();
        let hold = Hold::renewed(TTL, clock.now());
        assert!(hold.read(&clock, |_| {}).is_some());
        clock.advance(TTL);
        assert!(hold.read(&clock, |_| {}).is_none());
        assert!(hold.wait_to_renew(&clock).is_none());
        assert!(hold.take_to_renew(&clock).is_none());
    }

    #[test]
    fn guard_of_any_number_ends_by_itself() {
        let hold = Hold::renewed(TTL, ManualClock::new().now());
        for number in [1, 64, 70, 127] {
            assert!(!hold.is_ended(number));
            hold.end_guard(number);
            assert!(hold.is_ended(number));
        }
        let ended: Vec<_> = (0..128).filter(|number| hold.is_ended(*number)).collect();
        assert_eq!(ended, [1, 64, 70, 127]);
    }
}
