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

use super::backoff::Limits;
use super::hold::acquired::{Acquired, Ending};
use super::hold::lease::Ended;
use super::hold::{Callbacks, Hold, HoldState};
use super::key::Key;
use super::name_state::Finished;
use super::retry::Retry;
use super::travel::request::{LeaseRequest, is_no_answer};
use super::travel::sender::{Entry, Reply, unanswered};
use super::{ATTEMPT_LIMIT, Engine};

/// The longest that a release waits for the store.
pub(super) const RELEASE_LIMIT: Duration = Duration::from_secs(5);

/// The outcome of one attempt to release a lease.
pub(super) enum ReleaseAttempt {
    Answered(Result<Released, Error>),
    /// The store did not answer; it may have released the lease if the error is
    /// [`ErrorKind::Unknown`].
    NoAnswer(ErasedLease, Error),
    /// The deadline came while the request was under way: [leave](Engine::leave) it.
    UnderWay(Arc<Entry>),
}

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

    /// Ends guards of one acquisition whose holder waits for the store's answers: leases that no thread of this process
    /// waits for go back in one batch. Returns what was found of those.
    ///
    /// They end in the reverse order of their names. A thread that waits for the first name goes on to the others, and
    /// these are free then.
    pub(crate) fn release_all(self: &Arc<Self>, all: &[Acquired]) -> Vec<Result<Released, Error>> {
        if !self.may_travel(all) {
            let all = all.iter().rev();
            return all.map(|acquired| self.release(acquired)).collect();
        }
        let now = self.clock.now();
        let end = |acquired| Some((acquired, self.end_guard(acquired, now)?));
        let guards: Vec<_> = all.iter().rev().filter_map(end).collect();
        let Some((first, _)) = guards.first() else {
            return Vec::new();
        };
        let deadline = release_deadline(&first.hold, now);
        let (mut ended, mut asked, mut requests) = (Vec::new(), Vec::new(), Vec::new());
        for (acquired, (ending, mut guard)) in guards {
            match guard.lease.take() {
                Some(lease) => {
                    asked.push((acquired, ending, guard.callbacks));
                    requests.push(LeaseRequest::release(lease, deadline));
                }
                None => ended.push((acquired, ending, guard.callbacks, None)),
            }
        }
        let replies = self.ask_together(requests, deadline);
        let attempts = replies.map(|reply| Self::release_attempt(reply, None));
        let asked = asked.into_iter().zip(attempts);
        ended.extend(asked.map(|((acquired, ending, callbacks), attempt)| {
            (acquired, ending, callbacks, Some(attempt))
        }));
        // The names that the store has freed do not wait for the other ones.
        ended.sort_by_key(|(.., attempt)| !matches!(attempt, Some(ReleaseAttempt::Answered(_))));
        let conclude = |(acquired, ending, callbacks, attempt): (&Acquired, _, _, Option<_>)| {
            let hold = &acquired.hold;
            let answer = match attempt {
                Some(attempt) => self.repeat_release(hold, attempt, deadline, now),
                None => self.return_lease(hold, None, now),
            };
            self.conclude(acquired, ending, callbacks, answer)
        };
        ended.into_iter().map(conclude).collect()
    }

    /// Returns whether releases of these guards may go to the store together.
    pub(super) fn may_travel(&self, all: &[Acquired]) -> bool {
        all.len() > 1 && self.capabilities.batch() > 1
    }

    /// Releases a lease that a renewal may have.
    fn return_lease(
        self: &Arc<Self>,
        hold: &Hold,
        lease: Option<ErasedLease>,
        now: HostInstant,
    ) -> Result<Released, Error> {
        let deadline = release_deadline(hold, now);
        let (lease, now) = match lease {
            Some(lease) => (lease, now),
            None => match hold.take_to_release(deadline, &*self.clock)? {
                Some(lease) => (lease, self.clock.now()),
                None => return Ok(Released::AlreadyLost),
            },
        };
        let attempt = self.attempt_release(LeaseRequest::release(lease, deadline), None);
        self.repeat_release(hold, attempt, deadline, now)
    }

    /// Returns the answer to a release that began at `now`, which is repeated while the store does not answer.
    fn repeat_release(
        self: &Arc<Self>,
        hold: &Hold,
        mut attempt: ReleaseAttempt,
        deadline: HostInstant,
        now: HostInstant,
    ) -> Result<Released, Error> {
        if let ReleaseAttempt::Answered(answer) = attempt {
            return answer;
        }
        let limits = Limits {
            clock: &*self.clock,
            until: deadline.min(now + ATTEMPT_LIMIT),
            cancel: None,
        };
        let mut retry = Retry::new(limits, now);
        loop {
            match attempt {
                ReleaseAttempt::Answered(answer) => return answer,
                ReleaseAttempt::NoAnswer(lease, error) => {
                    retry.after(&error, None)?;
                    let request = LeaseRequest::release(lease, deadline);
                    attempt = self.attempt_release(request, retry.lost_reply());
                }
                ReleaseAttempt::UnderWay(entry) => {
                    self.leave_release(&entry, hold.part, hold.policy.ttl());
                    return Err(unanswered());
                }
            }
        }
    }

    /// Asks the store once to release a lease. `lost_reply` is the error of a request before it whose reply was lost.
    pub(super) fn attempt_release(
        self: &Arc<Self>,
        request: LeaseRequest,
        lost_reply: Option<&Error>,
    ) -> ReleaseAttempt {
        Self::release_attempt(self.ask(request), lost_reply)
    }

    /// Returns what the reply to a release means.
    fn release_attempt(reply: Reply, lost_reply: Option<&Error>) -> ReleaseAttempt {
        let answer = match reply {
            Reply::Answered(answer) => answer,
            Reply::UnderWay(entry) => return ReleaseAttempt::UnderWay(entry),
        };
        match answer.released() {
            (Some(lease), Err(error)) if is_no_answer(error.kind()) => {
                ReleaseAttempt::NoAnswer(lease, error)
            }
            (_, answer) => {
                ReleaseAttempt::Answered(answer.and_then(|found| found_after(found, lost_reply)))
            }
        }
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
    pub(super) fn run_callbacks(&self, hold: &Arc<Hold>, ending: Ending, callbacks: Callbacks) {
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
pub(super) fn forget(callbacks: Callbacks) {
    for callback in callbacks {
        run_caught(|| drop(callback));
    }
}

/// Returns the end of a release whose holder waits for it.
fn release_deadline(hold: &Hold, now: HostInstant) -> HostInstant {
    now + RELEASE_LIMIT.min(hold.policy.ttl())
}

/// Returns the result of a release. After an attempt without a reply, a lock that is gone may have been released by that
/// attempt: then the result is unknown. `lost_reply` is the error of such an attempt.
pub(super) fn found_after(found: Released, lost_reply: Option<&Error>) -> Result<Released, Error> {
    match (found, lost_reply) {
        (Released::AlreadyLost, Some(lost)) => Err(unknown_release(lost)),
        (found, _) => Ok(found),
    }
}

/// Returns the error of a release that was repeated after a lost reply and found nothing.
fn unknown_release(lost_reply: &Error) -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the reply to the release did not come, and the lock was gone when it was asked for again: it was released, or it had been lost before; where that matters, have the data refuse smaller tokens",
    )
    .with_source(lost_reply.clone())
}
