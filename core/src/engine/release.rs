//! Ending a guard: its lease goes to the next waiter of the process, or back to the store.
//!
//! `release()` asks the store once. Without an answer, the keeper's threads go on with the release as after a drop: see
//! `give_back.rs`. The holder waits for them for a while, and no other thread gets the name before they are done.
//!
//! What a release and a drop share is always inlined: left to the compiler, it costs a lock within the
//! process 20 ns of 370.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::{ErasedLease, Released};
use crate::engine::timer::MAX_SLEEP;
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::sync::run_caught;

use super::hold::acquired::{Acquired, Ending, ReleaseNews, UnreleasedGuard};
use super::hold::{Callbacks, Hold, HoldState};
use super::key::Key;
use super::name_state::Finished;
use super::travel::request::{LeaseRequest, RELEASE_LIMIT, Release, Settlement, is_no_answer};
use super::travel::sender::Reply;
use super::{ATTEMPT_LIMIT, Engine};

/// A release without an answer, with which the keeper's threads go on.
struct LeftRelease<'a> {
    acquired: &'a Acquired,
    ending: Ending,
    news: Receiver<ReleaseNews>,
    /// When the holder stops to wait for the answer.
    until: HostInstant,
    /// When the holder stops to wait if the release has not reached the store.
    until_if_not_sent: HostInstant,
    /// The error that the holder gets then. `None` if no request has failed yet.
    error: Option<Error>,
    /// Whether it is that of the first request. If the lock is gone when it is repeated, that request may be the cause: a
    /// store can end the session on which it failed.
    is_first: bool,
}

impl<'a> LeftRelease<'a> {
    /// Makes the release of a guard that began at `began`, and what the keeper's threads get.
    fn new(
        acquired: &'a Acquired,
        ending: Ending,
        began: HostInstant,
    ) -> (Box<UnreleasedGuard>, Self) {
        let (holder, news) = channel();
        let guard = Box::new(UnreleasedGuard {
            acquired: acquired.clone(),
            ending,
            holder: Some(holder),
        });
        let until = release_deadline(&acquired.hold, began);
        let left = Self {
            acquired,
            ending,
            news,
            until,
            until_if_not_sent: until.min(began + ATTEMPT_LIMIT),
            error: None,
            is_first: false,
        };
        (guard, left)
    }

    /// Notes why the release has no answer yet; `is_first` if that is the error of its first request.
    fn fail(&mut self, error: Error, is_first: bool) {
        if self.error.is_none() {
            self.until = self.until_if_not_sent;
            (self.error, self.is_first) = (Some(error), is_first);
        }
    }
}

impl Engine {
    /// Ends a guard whose holder waits for the store's answer.
    pub(crate) fn release(self: &Arc<Self>, acquired: &Acquired) -> Result<Released, Error> {
        let now = self.clock.now();
        let Some((ending, lease, callbacks)) = self.end_guard(acquired, now) else {
            return Ok(Released::Done);
        };
        let deadline = release_deadline(&acquired.hold, now);
        let request = |lease| LeaseRequest::release(lease, deadline);
        let reply = lease.map(|lease| self.ask(request(lease)));
        let guard = (acquired, ending, callbacks);
        self.conclude_with(guard, reply, now)
    }

    /// Ends guards of one acquisition whose holder waits for the store's answers: leases that no thread of this process
    /// waits for go back in one batch. Returns what was found of those.
    ///
    /// They end in the reverse order of their names. A thread that waits for the first name goes on to the others, and
    /// these are free then. The keeper's threads pass each name on as soon as its release is answered: a part of the store
    /// that hangs keeps no name of another one.
    pub(crate) fn release_all(self: &Arc<Self>, all: &[Acquired]) -> Vec<Result<Released, Error>> {
        if !self.may_travel(all) {
            let all = all.iter().rev();
            return all.map(|acquired| self.release(acquired)).collect();
        }
        let mut left = Vec::new();
        self.release_together(all, |acquired, ending, now| {
            let (guard, release) = LeftRelease::new(acquired, ending, now);
            left.push(release);
            (guard, true)
        });
        let left = left.into_iter();
        left.map(|left| self.wait_for_release(left)).collect()
    }

    /// Returns whether releases of these guards may go to the store together.
    pub(super) fn may_travel(&self, all: &[Acquired]) -> bool {
        all.len() > 1 && self.capabilities.batch() > 1
    }

    /// Concludes a guard with the reply to its release, which began at `began`. There is no reply if a renewal has the
    /// lease, or if it was released before.
    fn conclude_with(
        self: &Arc<Self>,
        (acquired, ending, callbacks): (&Acquired, Ending, Callbacks),
        reply: Option<Reply>,
        began: HostInstant,
    ) -> Result<Released, Error> {
        let (mut unanswered, mut under_way) = (None, None);
        match reply {
            Some(Reply::Answered(answer)) => match answer.released() {
                (Some(lease), Err(error)) if is_no_answer(error.kind()) => {
                    unanswered = Some((lease, error));
                }
                (_, answer) => return self.conclude(acquired, ending, callbacks, answer),
            },
            Some(Reply::UnderWay(entry)) => under_way = Some(entry),
            None => {}
        }
        let (guard, mut left) = LeftRelease::new(acquired, ending, began);
        match under_way {
            Some(entry) => {
                let release = self.begin_release(guard);
                self.leave(&entry, Settlement::Release(release));
            }
            None => {
                let (lease, error) = unanswered.unzip();
                self.release_later(lease, guard, error.clone());
                if let Some(error) = error {
                    left.fail(error, true);
                }
            }
        }
        self.run_callbacks(&acquired.hold, ending, callbacks);
        self.wait_for_release(left)
    }

    /// Waits for the answer to a release with which the keeper's threads go on, and reports the guard's end.
    fn wait_for_release(&self, mut left: LeftRelease<'_>) -> Result<Released, Error> {
        let answer = loop {
            let wait = left.until.saturating_since(self.clock.now());
            let news = match wait.is_zero() {
                true => left.news.try_recv().ok(),
                // A channel's time-out does not advance while the host is suspended.
                false => match left.news.recv_timeout(wait.min(MAX_SLEEP)) {
                    Ok(news) => Some(news),
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => None,
                },
            };
            match news {
                Some(ReleaseNews::Ended(Ok(Released::AlreadyLost))) if left.is_first => {
                    break Err(left.error.unwrap_or_else(not_answered));
                }
                Some(ReleaseNews::Ended(answer)) => break answer,
                Some(ReleaseNews::Failed(error)) => left.fail(error, true),
                Some(ReleaseNews::NotSent(cause)) => left.fail(cause, false),
                None => break Err(left.error.unwrap_or_else(not_answered)),
            }
        };
        self.report_end(left.acquired, left.ending, answer)
    }

    /// Ends a guard in this process. Returns its lease and its callbacks as [`Hold::end`] does. `None` if its lease was
    /// handed over, which is reported.
    #[inline(always)] // See the module.
    pub(super) fn end_guard(
        &self,
        acquired: &Acquired,
        now: HostInstant,
    ) -> Option<(Ending, Option<ErasedLease>, Callbacks)> {
        let hold = &acquired.hold;
        // Other guards of a lost lease may still live, and this one reports the loss.
        if hold.mode == Mode::Shared && hold.state(now) == HoldState::Lost {
            self.queue.detach(hold.key(), hold);
            self.notify_lost(hold);
        }
        let finished = self.queue.finish(hold.key(), hold, acquired.number);
        let held = acquired.reported_at.map(|at| now.saturating_since(at));
        if finished == Finished::HandedOver {
            forget(acquired.end_handover());
            self.notify_released(acquired, held, &Ok(Released::Done));
            return None;
        }
        let (in_time, lease, callbacks) = hold.end(now);
        // If the lease was lost before, the store may still have it, so its release comes first.
        let keeps_name = finished == Finished::Release || self.queue.begin_release(hold.key());
        let ending = Ending {
            keeps_name,
            in_time,
            held,
        };
        Some((ending, lease, callbacks))
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

    /// Begins the release of a guard's lease that no caller waits for.
    pub(super) fn begin_release(&self, guard: Box<UnreleasedGuard>) -> Release {
        let hold = &guard.acquired.hold;
        let (part, until) = (hold.part, self.clock.now() + hold.policy.ttl());
        self.begin_return(part);
        Release::new(part, until, Some(guard))
    }

    /// Lets the next thread have the name of an ended guard.
    pub(super) fn pass_on(&self, key: Key<'_>, ending: Ending) {
        if ending.keeps_name {
            self.queue.released(key);
        }
    }

    /// Drops the callbacks of a guard that ended in time, or reports its loss. The user's code comes
    /// after the name was passed on: it may lock this very name.
    pub(super) fn run_callbacks(&self, hold: &Arc<Hold>, ending: Ending, callbacks: Callbacks) {
        forget(callbacks);
        if !ending.in_time {
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
pub(super) fn forget(callbacks: Callbacks) {
    for callback in callbacks {
        run_caught(|| drop(callback));
    }
}

/// Returns the end of a release whose holder waits for it.
fn release_deadline(hold: &Hold, now: HostInstant) -> HostInstant {
    now + RELEASE_LIMIT.min(hold.policy.ttl())
}

/// Returns the error of a release whose first request, or a renewal before it, has no answer yet.
fn not_answered() -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the release has no answer yet; the keeper goes on with it, and the store frees the lock after its ttl at the latest",
    )
}
