//! A hold as one of its guards has it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::clock::{Clock, HostInstant};
use crate::sync::lock;
use crate::token::FencingToken;

use super::{Callbacks, Hold, HoldState};

/// A hold, from the hand-over (or grant) to one guard until the hand-over to the next.
#[derive(Clone)]
pub(crate) struct Acquired {
    pub(crate) hold: Arc<Hold>,
    /// The number of hand-overs before this guard.
    pub(crate) handovers: u32,
}

impl Acquired {
    /// The hold for the guard that has it now.
    pub(crate) fn new(hold: Arc<Hold>) -> Self {
        Self {
            handovers: hold.handovers.load(Ordering::Acquire),
            hold,
        }
    }

    pub(crate) fn token(&self) -> FencingToken {
        self.hold.first_token.after_handovers(self.handovers)
    }

    fn is_handed_over(&self) -> bool {
        self.hold.handovers.load(Ordering::Acquire) != self.handovers
    }

    /// Returns the state of this guard.
    pub(crate) fn state(&self, now: HostInstant) -> HoldState {
        if self.is_handed_over() {
            HoldState::Released
        } else {
            self.hold.state(now)
        }
    }

    /// Has `callback` called when this guard is lost. Gives it back if that has happened already,
    /// and drops it if the guard was released.
    pub(crate) fn on_lost<F: FnOnce() + Send + 'static>(
        &self,
        callback: F,
        clock: &dyn Clock,
    ) -> Option<F> {
        match self.state(clock.now()) {
            HoldState::Released => return None,
            HoldState::Lost => return Some(callback),
            HoldState::Held => {}
        }
        let mut inside = lock(&self.hold.inside);
        // The loss was reported in between, and the callbacks were taken.
        if self.hold.is_loss_notified.load(Ordering::Acquire) {
            return Some(callback);
        }
        inside.on_lost.push((self.handovers, Box::new(callback)));
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
            if !self.is_handed_over() && self.hold.deadline.state(now) == Some(HoldState::Held) {
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
        let is_of_ended_guard = |callback: &mut (u32, _)| callback.0 <= self.handovers;
        inside.on_lost.extract_if(.., is_of_ended_guard).collect()
    }

    /// Takes the callbacks of this guard and of those before it, to report the loss.
    pub(crate) fn take_callbacks(&self) -> Callbacks {
        std::mem::take(&mut lock(&self.hold.inside).on_lost)
    }
}
