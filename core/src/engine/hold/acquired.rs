//! A hold, from the view of one of its guards.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use crate::clock::{Clock, HostInstant};
use crate::contract::provider::Released;
use crate::error::Error;
use crate::sync::lock;
use crate::token::FencingToken;

use super::{Callbacks, Hold, HoldState};

/// A hold, from the hand-over (or grant) to one guard until the hand-over to the next.
#[derive(Clone)]
pub(crate) struct Acquired {
    pub(crate) hold: Arc<Hold>,
    /// The number of the guard, which is the number of hand-overs before it.
    pub(crate) number: u32,
    /// When the guard was reported to the observers. `None` if it was not.
    pub(crate) reported_at: Option<HostInstant>,
}

/// A guard that has ended, and whose lease the keeper's threads release.
pub(crate) struct UnreleasedGuard {
    pub(crate) acquired: Acquired,
    pub(crate) ending: Ending,
    /// Receives the news, if the guard was not dropped: its holder reports the end.
    pub(crate) holder: Option<Sender<ReleaseNews>>,
}

/// What the holder of a guard learns of its release.
pub(crate) enum ReleaseNews {
    /// Its first request got no answer, and is repeated.
    Failed(Error),
    /// It has not reached the store for this reason, and is repeated.
    NotSent(Error),
    Ended(Result<Released, Error>),
}

/// How a guard ended.
#[derive(Clone, Copy)]
pub(crate) struct Ending {
    /// Whether the name is kept until the lease is released: see [`Finished::Release`](crate::engine::name_state::Finished::Release).
    pub(crate) keeps_name: bool,
    /// Whether the lock was held until then.
    pub(crate) in_time: bool,
    /// How long the guard had the lease, if the guard was reported to the observers.
    pub(crate) held: Option<Duration>,
}

impl Acquired {
    /// Makes the view of the guard with this number.
    pub(crate) fn new(hold: Arc<Hold>, number: u32) -> Self {
        Self {
            hold,
            number,
            reported_at: None,
        }
    }

    /// Makes the view of the first guard.
    pub(crate) fn first(hold: Arc<Hold>) -> Self {
        Self::new(hold, 0)
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.hold.token(self.number)
    }

    /// Returns whether this guard has ended before the lease.
    pub(crate) fn is_ended(&self) -> bool {
        self.hold.is_ended(self.number)
    }

    /// Returns the state of this guard.
    pub(crate) fn state(&self, now: HostInstant) -> HoldState {
        if self.is_ended() {
            HoldState::Released
        } else {
            self.hold.state(now)
        }
    }

    /// Registers `callback` for the loss of this guard. Returns it if the guard is lost already, and drops it if the
    /// guard was released.
    pub(crate) fn on_lost<F: FnOnce() + Send + 'static>(
        &self,
        callback: F,
        clock: &dyn Clock,
    ) -> Option<F> {
        let now = clock.now();
        match self.state(now) {
            HoldState::Released => return None,
            HoldState::Lost => return Some(callback),
            HoldState::Held => {}
        }
        let mut inside = lock(&self.hold.inside);
        // The loss was reported in between, and the callbacks were taken.
        if self.hold.is_loss_notified.load(Ordering::Acquire) {
            return Some(callback);
        }
        // The guard was released in between, and its callbacks were dropped.
        let is_released = self.hold.deadline.state(now) == Some(HoldState::Released);
        if is_released || self.is_ended() {
            return None;
        }
        inside.on_lost.push((self.number, Box::new(callback)));
        None
    }

    /// Blocks until this guard is lost or released, at most until `deadline`.
    pub(crate) fn wait_until_lost(&self, deadline: HostInstant, clock: &dyn Clock) -> HoldState {
        loop {
            let now = clock.now();
            let state = self.state(now);
            if state != HoldState::Held || now >= deadline {
                return state;
            }
            let inside = lock(&self.hold.inside);
            // A change after this is notified, since that takes the mutex.
            if !self.is_ended() && self.hold.deadline.state(now) == Some(HoldState::Held) {
                let until = deadline.min(self.hold.until());
                drop(
                    self.hold
                        .wait_for_change(inside, until.saturating_since(now)),
                );
            }
        }
    }

    /// Ends this guard after a hand-over: wakes the threads that wait for its loss. Returns its
    /// callbacks, to be dropped with no lock held.
    pub(crate) fn end_handover(&self) -> Callbacks {
        let mut inside = lock(&self.hold.inside);
        self.hold.notify(&inside);
        let is_own = |callback: &mut (u32, _)| callback.0 == self.number;
        inside.on_lost.extract_if(.., is_own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    /// A clock that reports the loss of a hold as soon as a caller has read the time.
    #[derive(Debug)]
    struct ReportsLoss(Arc<Hold>);

    impl Clock for ReportsLoss {
        fn now(&self) -> HostInstant {
            assert!(self.0.must_notify_loss());
            assert!(self.0.take_callbacks().is_empty());
            self.0.granted_at
        }
    }

    #[test]
    fn callback_that_comes_while_the_loss_is_reported_is_given_back() {
        let (asked_at, ttl) = (ManualClock::new().now(), Duration::from_secs(12));
        let hold = Arc::new(Hold::renewed(ttl, asked_at));
        let acquired = Acquired::first(Arc::clone(&hold));
        assert!(acquired.on_lost(|| {}, &ReportsLoss(hold)).is_some());
    }
}
