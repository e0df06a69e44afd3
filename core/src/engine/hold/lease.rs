//! The provider's lease of a hold: taken out to renew or release it, and brought back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::{Clock, HostInstant};
use crate::contract::provider::{ErasedLease, Renewal};
use crate::error::Error;
use crate::sync::{MutexGuard, lock};

use super::acquired::UnreleasedGuard;
use super::{Hold, HoldState, Inside};

/// What a renewal asked for.
pub(crate) struct Asked {
    pub(crate) at: HostInstant,
    pub(crate) ttl: Duration,
    /// The number of rounds of verification before it.
    pub(crate) round: u64,
    /// Whether the holder asked, and not the keeper.
    pub(crate) by_hand: bool,
}

/// A lease that is of no use any more, to be released.
pub(crate) struct Unwanted {
    pub(crate) lease: ErasedLease,
    /// The guard whose end is reported after the release.
    pub(crate) guard: Option<Box<UnreleasedGuard>>,
}

pub(super) enum LeaseSlot {
    Here(ErasedLease),
    /// A renewal has the lease. When it comes back, it is released for this guard, which has ended meanwhile.
    Away(Option<Box<UnreleasedGuard>>),
    Gone,
}

impl LeaseSlot {
    /// Takes the lease out if it is here, and leaves `instead`.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn take(&mut self, instead: LeaseSlot) -> Option<ErasedLease> {
        match std::mem::replace(self, instead) {
            LeaseSlot::Here(lease) => Some(lease),
            other => {
                *self = other;
                None
            }
        }
    }

    fn take_to_renew(&mut self) -> Option<ErasedLease> {
        self.take(LeaseSlot::Away(None))
    }
}

impl Hold {
    /// Takes the lease out for a renewal, with the renewal's deadline. `None` if the lease is lost,
    /// released, or with another renewal.
    pub(crate) fn take_to_renew(&self, clock: &dyn Clock) -> Option<(ErasedLease, HostInstant)> {
        let mut inside = lock(&self.inside);
        // The guard is not released while the lease is here, so the deadline is not `NEVER`.
        let until = self.until();
        if clock.now() >= until {
            return None;
        }
        Some((inside.lease.take_to_renew()?, until))
    }

    /// Takes the lease out for a renewal by a caller. Waits for a renewal that is under way, at most
    /// until the deadline. `None` if the lease is lost or released.
    pub(crate) fn wait_to_renew(&self, clock: &dyn Clock) -> Option<(ErasedLease, HostInstant)> {
        let (mut inside, until) = self.wait_for_lease(clock)?;
        Some((inside.lease.take_to_renew()?, until))
    }

    /// Returns what `read` finds in the lease. Waits for a renewal that is under way, at most until
    /// the deadline. `None` if the lease is lost or released.
    pub(crate) fn read<R>(
        &self,
        clock: &dyn Clock,
        read: impl FnOnce(&ErasedLease) -> R,
    ) -> Option<R> {
        match &self.wait_for_lease(clock)?.0.lease {
            LeaseSlot::Here(lease) => Some(read(lease)),
            LeaseSlot::Away(_) | LeaseSlot::Gone => None,
        }
    }

    /// Waits until no renewal has the lease, at most until the deadline, which is returned as well.
    fn wait_for_lease(&self, clock: &dyn Clock) -> Option<(MutexGuard<'_, Inside>, HostInstant)> {
        let mut inside = lock(&self.inside);
        loop {
            let until = self.until();
            let left = until.saturating_since(clock.now());
            match &inside.lease {
                _ if left.is_zero() => return None,
                LeaseSlot::Here(_) => return Some((inside, until)),
                LeaseSlot::Away(_) => inside = self.wait_for_change(inside, left),
                LeaseSlot::Gone => return None,
            }
        }
    }

    /// Brings the lease back from a renewal, with the store's answer. `retry_at` is when the keeper
    /// repeats a renewal that got none.
    pub(crate) fn bring_back(
        &self,
        lease: ErasedLease,
        answer: &Result<Renewal, Error>,
        asked: &Asked,
        retry_at: Option<HostInstant>,
        clock: &dyn Clock,
    ) -> Option<Unwanted> {
        let (is_late, renew_at) = match answer {
            Ok(Renewal::Renewed) => {
                let until = asked.at + asked.ttl - self.margin;
                self.deadline.extend(until, || clock.now());
                // Renewed in the store after the guard was lost: the lease would keep the name for
                // another ttl without a guard.
                let is_late = self.state(clock.now()) == HoldState::Lost;
                if asked.by_hand {
                    self.restart_max_hold(asked.at);
                }
                (is_late, self.next_renewal(asked.at))
            }
            Ok(Renewal::Lost) => {
                self.lose();
                (false, None)
            }
            // The holder repeats its own renewal of a fixed lease.
            Err(_) if asked.by_hand && !self.policy.is_renewed() => (false, None),
            Err(_) => (false, retry_at),
        };
        self.is_failing.store(answer.is_err(), Ordering::Release);
        let mut inside = lock(&self.inside);
        let unwanted = match std::mem::replace(&mut inside.lease, LeaseSlot::Gone) {
            LeaseSlot::Away(None) if !is_late => {
                inside.lease = LeaseSlot::Here(lease);
                None
            }
            LeaseSlot::Away(guard) => Some(Unwanted { lease, guard }),
            LeaseSlot::Here(_) | LeaseSlot::Gone => Some(Unwanted { lease, guard: None }),
        };
        // Only now: a renewal that is due before the lease is here would not find it, and there
        // would be no other.
        if let Some(at) = renew_at {
            self.renew_at.store(at.as_nanos(), Ordering::Release);
        }
        self.notify(&inside);
        unwanted
    }

    /// Marks the lease for release when its renewal comes back, for the first guard that asks for that.
    ///
    /// # Errors
    /// The guard and the lease, if no renewal has it. Without a lease, it was released before or another guard's release
    /// waits for it.
    pub(crate) fn release_after_renewal(
        &self,
        guard: Box<UnreleasedGuard>,
    ) -> Result<(), (Box<UnreleasedGuard>, Option<ErasedLease>)> {
        let mut inside = lock(&self.inside);
        if let LeaseSlot::Away(released_for @ None) = &mut inside.lease {
            *released_for = Some(guard);
            return Ok(());
        }
        Err((guard, inside.lease.take(LeaseSlot::Gone)))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::clock::ManualClock;

    /// The reply takes so long that the next renewal is due at once.
    #[test]
    fn no_renewal_is_due_before_the_lease_is_back() {
        let (clock, ttl) = (ManualClock::new(), Duration::from_secs(12));
        let asked_at = clock.now();
        let hold = Hold::renewed(ttl, asked_at);
        let (lease, until) = hold.take_to_renew(&clock).unwrap();
        hold.renew_at.store(u64::MAX, Ordering::SeqCst);
        clock.advance(ttl / 2);
        let asked = Asked {
            at: asked_at + ttl / 8,
            ttl,
            round: 0,
            by_hand: false,
        };
        // The lease cannot come back while this is locked.
        let inside = lock(&hold.inside);
        let answer = Ok(Renewal::Renewed);
        thread::scope(|scope| {
            let back = scope.spawn(|| hold.bring_back(lease, &answer, &asked, None, &clock));
            while hold.until() == until {
                thread::yield_now();
            }
            // Time to do it wrong; a test that is too quick sees less, and fails no more for it.
            for _ in 0..1_000 {
                thread::yield_now();
            }
            let is_due = hold.renew_at.load(Ordering::SeqCst) != u64::MAX;
            drop(inside);
            assert!(back.join().unwrap().is_none());
            assert!(!is_due, "a renewal that comes now finds no lease");
        });
        assert!(
            hold.take_due_renewal(clock.now(), Duration::ZERO)
                && hold.take_to_renew(&clock).is_some()
        );
    }
}
