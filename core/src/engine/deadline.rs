//! The local deadline of a lease, in one atomic.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::HostInstant;

/// The value of a lease that is lost; it is never held again.
const LOST: u64 = 0;
/// The value of a lease that went back to the store.
const RELEASED: u64 = u64::MAX;

/// Whether a lease, or a guard of it, is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldState {
    Held,
    Lost,
    /// Released in time, or handed over to the next guard.
    Released,
}

/// The time in nanoseconds until which a lease is held, or `LOST` or `RELEASED`. Every change is a
/// compare-and-swap, so a lease that was once seen as lost stays lost.
pub(super) struct Deadline(AtomicU64);

impl Deadline {
    pub(super) fn new(at: HostInstant) -> Self {
        Self(AtomicU64::new(held_until(at)))
    }

    /// Returns the time itself. It is in the past if the lease is lost, and
    /// [`HostInstant::NEVER`] if it was released.
    pub(super) fn get(&self) -> HostInstant {
        HostInstant::from_nanos(self.0.load(Ordering::Acquire))
    }

    /// Returns the state at `now`; `None` if the deadline has passed and nothing has recorded the
    /// loss yet.
    pub(super) fn state(&self, now: HostInstant) -> Option<HoldState> {
        match self.0.load(Ordering::Acquire) {
            LOST => Some(HoldState::Lost),
            RELEASED => Some(HoldState::Released),
            until => (now.as_nanos() < until).then_some(HoldState::Held),
        }
    }

    /// Makes the lease lost if its deadline has passed at `now`. Returns whether this call did it.
    pub(super) fn expire(&self, now: HostInstant) -> bool {
        self.change(|until| (until <= now.as_nanos()).then_some(LOST))
    }

    /// Makes the lease lost, whatever the clock says. Returns whether this call did it.
    pub(super) fn lose(&self) -> bool {
        self.change(|_| Some(LOST))
    }

    /// Moves the deadline to a later time, unless `now`, read for each attempt, is behind it.
    pub(super) fn extend(&self, to: HostInstant, now: impl Fn() -> HostInstant) {
        let to = held_until(to);
        self.change(|until| (now().as_nanos() < until && until < to).then_some(to));
    }

    /// Ends a lease that is held at `now`. Returns whether it was.
    pub(super) fn release(&self, now: HostInstant) -> bool {
        self.change(|until| (now.as_nanos() < until).then_some(RELEASED))
    }

    /// Replaces the deadline of a lease that is neither lost nor released.
    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        let change = |until| match until {
            LOST | RELEASED => None,
            until => to(until),
        };
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.fetch_update(set, fetch, change).is_ok()
    }
}

fn held_until(at: HostInstant) -> u64 {
    at.as_nanos().clamp(LOST + 1, RELEASED - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 1_000;

    fn at(nanos: u64) -> HostInstant {
        HostInstant::from_nanos(nanos)
    }

    #[test]
    fn lease_is_held_before_its_deadline_and_never_after_it() {
        let deadline = Deadline::new(at(AT));
        assert_eq!(deadline.get(), at(AT));
        assert_eq!(deadline.state(at(AT - 1)), Some(HoldState::Held));
        assert_eq!(deadline.state(at(AT)), None);
        assert!(!deadline.expire(at(AT - 1)));
        // Only a later time replaces the deadline, and only before it has passed.
        deadline.extend(at(AT - 1), || at(0));
        deadline.extend(at(2 * AT), || at(AT));
        assert_eq!(deadline.get(), at(AT));
        deadline.extend(at(2 * AT), || at(AT - 1));
        assert_eq!(deadline.get(), at(2 * AT));
        assert!(!deadline.release(at(2 * AT)));
        assert!(deadline.expire(at(2 * AT)));
        for _ in 0..2 {
            assert_eq!(deadline.state(at(0)), Some(HoldState::Lost));
            deadline.extend(at(3 * AT), || at(0));
            assert!(!deadline.expire(at(3 * AT)) && !deadline.release(at(0)) && !deadline.lose());
        }
        let [lost, released] = [(); 2].map(|()| Deadline::new(at(AT)));
        assert!(lost.lose() && !lost.lose());
        assert_eq!(lost.state(at(0)), Some(HoldState::Lost));
        assert!(released.release(at(AT - 1)) && !released.lose());
        assert_eq!(released.state(at(AT)), Some(HoldState::Released));
        assert_eq!(released.get(), HostInstant::NEVER);
    }

    /// Both ends of time have a meaning of their own.
    #[test]
    fn lease_of_any_deadline_is_neither_lost_nor_released() {
        assert_eq!(Deadline::new(at(0)).state(at(0)), Some(HoldState::Held));
        let long = Deadline::new(HostInstant::NEVER);
        assert_eq!(long.state(at(AT)), Some(HoldState::Held));
        assert!(long.expire(HostInstant::NEVER));
    }
}
