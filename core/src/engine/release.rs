//! Ending a guard: its lease goes to the next waiter of the process, or back to the store.
//!
//! What a release and a drop share is always inlined: left to the compiler, it costs a lock within the
//! process 20 ns of 370.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::{ErasedLease, Released};
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::sync::run_caught;

use super::hold::acquired::Acquired;
use super::hold::dropped::{DroppedGuard, Ending};
use super::hold::lease::Ended;
use super::hold::{Callbacks, Hold, HoldState};
use super::key::Key;
use super::name_state::Finished;
use super::release_lease::ReleaseAttempt;
use super::{DROP_LIMIT, Engine};

impl Engine {
    /// Ends a guard whose holder waits for the store's answer.
    pub(crate) fn release(self: &Arc<Self>, acquired: &Acquired) -> Result<Released, Error> {
        let now = self.clock.now();
        let Some((ending, ended)) = self.end_guard(acquired, now) else {
            return Ok(Released::Done);
        };
        let answer = self.return_lease(&acquired.hold, ended.lease, now);
        self.conclude(acquired, ending, ended.callbacks, answer)
    }

    /// Ends a guard that is dropped. It waits for the store for [`DROP_LIMIT`] at most. It does not wait if the guard
    /// is lost, if a renewal has the lease, or while the store does not answer. Then the keeper's own threads release
    /// the lease.
    pub(crate) fn release_dropped(self: &Arc<Self>, acquired: &Acquired) {
        self.release_dropped_until(acquired, HostInstant::NEVER);
    }

    /// Ends a guard as [`release_dropped`](Self::release_dropped) does, and waits for the store until `end` at most.
    #[inline(always)] // See the module.
    pub(super) fn release_dropped_until(self: &Arc<Self>, acquired: &Acquired, end: HostInstant) {
        let now = self.clock.now();
        let Some((ending, mut ended)) = self.end_dropped_guard(acquired, now) else {
            return;
        };
        let until = end.min(now + DROP_LIMIT);
        let lease = self.take_to_drop(acquired, ending, &mut ended, now < until);
        let attempt = lease.map(|lease| self.attempt_release(lease, (now, until), None));
        self.finish_drop(acquired, ending, ended, attempt);
    }

    /// Ends a guard that is dropped, in this process. `None` if its lease was handed over.
    #[inline(always)]
    pub(super) fn end_dropped_guard(
        &self,
        acquired: &Acquired,
        now: HostInstant,
    ) -> Option<(Ending, Ended)> {
        let (mut ending, ended) = self.end_guard(acquired, now)?;
        if !ending.keeps_name {
            // The lease was lost before. The store may still have it, so its release comes first.
            ending.keeps_name = self.queue.begin_release(acquired.hold.key());
        }
        Some((ending, ended))
    }

    /// Takes the lease of a guard that is dropped if its own thread is to ask the store, and has time for that.
    #[inline(always)]
    pub(super) fn take_to_drop(
        &self,
        acquired: &Acquired,
        ending: Ending,
        ended: &mut Ended,
        has_time: bool,
    ) -> Option<ErasedLease> {
        let health = &self.parts.get(acquired.hold.part).health;
        match ending.in_time && has_time && !health.is_silent() {
            true => ended.lease.take(),
            false => None,
        }
    }

    /// Concludes the drop of a guard, or leaves its release to the keeper's threads. `attempt` is what its own
    /// thread found.
    #[inline(always)]
    pub(super) fn finish_drop(
        self: &Arc<Self>,
        acquired: &Acquired,
        ending: Ending,
        mut ended: Ended,
        attempt: Option<ReleaseAttempt>,
    ) {
        let (mut lost_reply, mut under_way) = (None, None);
        if let Some(attempt) = attempt {
            match attempt {
                ReleaseAttempt::Answered(answer) => {
                    // The observer has the error.
                    let _ = self.conclude(acquired, ending, ended.callbacks, answer);
                    return;
                }
                ReleaseAttempt::NoAnswer(lease, error) => {
                    ended.lease = Some(lease);
                    lost_reply = Some(error).filter(|it| it.kind() == ErrorKind::Unknown);
                }
                ReleaseAttempt::UnderWay(entry) => under_way = Some(entry),
            }
            self.parts.get(acquired.hold.part).health.set_slow(true);
        }
        let guard = Box::new(DroppedGuard {
            acquired: acquired.clone(),
            ending,
            lost_reply,
        });
        match under_way {
            None => self.release_later(ended.lease, guard),
            Some(entry) => self.release_under_way(&entry, guard),
        }
        self.run_callbacks(&acquired.hold, ending, ended.callbacks);
    }

    /// Ends a guard in this process. `None` if its lease was handed over, which is reported.
    #[inline(always)] // See the module.
    pub(super) fn end_guard(
        &self,
        acquired: &Acquired,
        now: HostInstant,
    ) -> Option<(Ending, Ended)> {
        let hold = &acquired.hold;
        // Other guards of a lost lease may still live, and this one reports the loss.
        if hold.mode == Mode::Shared && hold.state(now) == HoldState::Lost {
            self.queue.detach(hold.key(), hold);
            if hold.must_notify_loss() {
                self.notify_lost(hold);
            }
        }
        let finished = self.queue.finish(hold.key(), hold, acquired.number);
        let held = acquired.reported_at.map(|at| now.saturating_since(at));
        if finished == Finished::HandedOver {
            forget(acquired.end_handover());
            self.notify_released(acquired, held, &Ok(Released::Done));
            return None;
        }
        let ended = hold.end(now);
        let ending = Ending {
            keeps_name: finished == Finished::Release,
            in_time: ended.in_time,
            held,
        };
        Some((ending, ended))
    }

    /// Passes the name of an ended guard on, calls the user's code, and reports the end.
    pub(super) fn conclude(
        &self,
        acquired: &Acquired,
        ending: Ending,
        callbacks: Callbacks,
        answer: Result<Released, Error>,
    ) -> Result<Released, Error> {
        self.pass_on(acquired.hold.key(), ending);
        self.run_callbacks(&acquired.hold, ending, callbacks);
        self.report_end(acquired, ending, answer)
    }

    /// Lets the next thread have the name of an ended guard.
    pub(super) fn pass_on(&self, key: Key<'_>, ending: Ending) {
        if ending.keeps_name {
            self.queue.released(key);
        }
    }

    /// Drops the callbacks of a guard that ended in time, or reports its loss. The user's code comes
    /// after the name was passed on: it may lock this very name.
    fn run_callbacks(&self, hold: &Arc<Hold>, ending: Ending, callbacks: Callbacks) {
        forget(callbacks);
        if !ending.in_time && hold.must_notify_loss() {
            self.notify_lost(hold);
        }
    }

    /// Reports the end of a guard to its observer, and returns what the release found.
    #[inline(always)] // See the module.
    pub(super) fn report_end(
        &self,
        acquired: &Acquired,
        ending: Ending,
        answer: Result<Released, Error>,
    ) -> Result<Released, Error> {
        let result = match ending.in_time {
            true => answer,
            false => answer.map(|_| Released::AlreadyLost),
        };
        let result = result.map_err(|error| self.located(&acquired.hold.name, error));
        self.notify_released(acquired, ending.held, &result);
        result
    }

    fn notify_released(
        &self,
        acquired: &Acquired,
        held: Option<Duration>,
        result: &Result<Released, Error>,
    ) {
        self.closing.notify();
        if let Some(held) = held {
            let (lock, token) = (self.observed_hold(&acquired.hold), acquired.token());
            self.notifier
                .notify(|o| o.released(&lock, token, held, result));
        }
    }
}

/// Drops callbacks that are not called any more: what they captured is the user's code.
fn forget(callbacks: Callbacks) {
    for callback in callbacks {
        run_caught(|| drop(callback));
    }
}
