//! Ending a guard, by its drop or by `release()`: its lease goes to the next waiter of the process, or back to the store.
//!
//! No thread waits for the release of a dropped guard. If nothing is under way, the guard's own thread sends it. The
//! store answers at once, or owes the reply, which goes with the next request of the part: see `travel/request_queue.rs`.
//! Otherwise the release goes with the next batch. A drop sends nothing if the guard is lost, if a renewal has the lease,
//! or while the store does not answer. In a forked child it does nothing: the parent has the lock.
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
use crate::contract::batch::ReleaseDispatch;
use crate::contract::provider::{ErasedLease, Released};
use crate::engine::timer::MAX_SLEEP;
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::process::process_id;
use crate::sync::run_caught;

use super::hold::acquired::{Acquired, Ending, ReleaseNews, UnreleasedGuard};
use super::hold::{Callbacks, Hold, HoldState};
use super::key::Key;
use super::name_state::Finished;
use super::threads::MAX_QUEUED;
use super::travel::request::{
    LeaseRequest, LeaseVerb, RELEASE_LIMIT, RELEASED, Release, Request, Settlement, is_no_answer,
    panicked,
};
use super::travel::sender::{Entry, Reply, unanswered};
use super::{ATTEMPT_LIMIT, Engine};

impl Engine {
    /// Ends a guard that is dropped.
    pub(crate) fn release_dropped(self: &Arc<Self>, acquired: &Acquired) {
        if acquired.hold.process == process_id() {
            self.release_dropped_until(acquired, HostInstant::NEVER);
        }
    }

    /// Ends a guard that is dropped. From `end` on, its thread sends nothing.
    #[inline(always)] // See the module.
    fn release_dropped_until(self: &Arc<Self>, acquired: &Acquired, end: HostInstant) {
        let now = self.clock.now();
        let Some((ending, lease, callbacks)) = self.end_guard(acquired, now) else {
            return;
        };
        match lease {
            Some(lease) if now < end && self.may_send(acquired, ending, now) => {
                self.send_release(acquired, (ending, callbacks), lease, now);
            }
            lease => {
                self.release_later(lease, dropped(acquired, ending), None);
                self.run_callbacks(&acquired.hold, ending, callbacks);
            }
        }
    }

    #[inline(always)]
    fn may_send(&self, acquired: &Acquired, ending: Ending, now: HostInstant) -> bool {
        ending.in_time && !self.parts.get(acquired.hold.part).is_silent(now)
    }

    /// Sends the release of a guard, and concludes the guard if the store answers at once.
    #[inline(always)]
    fn send_release(
        self: &Arc<Self>,
        acquired: &Acquired,
        (ending, callbacks): (Ending, Callbacks),
        mut lease: ErasedLease,
        now: HostInstant,
    ) {
        let part = acquired.hold.part;
        let mut number = None;
        if self.capabilities.batch() > 1 {
            let requests = &self.parts.get(part).requests;
            number = requests.begin_send(acquired.hold.key().id());
            if number.is_none() {
                self.release_later(Some(lease), dropped(acquired, ending), None);
                return self.run_callbacks(&acquired.hold, ending, callbacks);
            }
        }
        // A guard may be dropped while its thread panics; a second panic would abort.
        let sent = run_caught(|| self.provider.send_release(&mut lease));
        let (answer, lost_reply) = match (sent, number) {
            (Some(ReleaseDispatch::Answered(Err(error))), _) if is_no_answer(error.kind()) => {
                (None, Some(error))
            }
            (Some(ReleaseDispatch::Answered(answer)), _) => {
                self.note_release((part, now), &answer);
                (Some(answer), None)
            }
            (Some(ReleaseDispatch::Sent(sent)), Some(number)) => {
                let verb = LeaseVerb::Sent {
                    sent: Some(sent),
                    sent_at: now,
                    name: acquired.hold.key().id(),
                };
                let sent = LeaseRequest {
                    verb,
                    ..LeaseRequest::release(lease, now)
                };
                self.owe_reply(acquired, ending, sent, number);
                return self.run_callbacks(&acquired.hold, ending, callbacks);
            }
            // No batch takes the reply along.
            (Some(ReleaseDispatch::Sent(_)), None) => (None, Some(unanswered())),
            (Some(ReleaseDispatch::NotSent), _) => (None, None),
            (None, _) => (Some(Err(panicked(RELEASED))), None),
        };
        self.end_send(part, number, None);
        match answer {
            Some(answer) => {
                // The observer has the error.
                let _ = self.conclude(acquired, ending, callbacks, answer);
            }
            None => {
                self.release_later(Some(lease), dropped(acquired, ending), lost_reply);
                self.run_callbacks(&acquired.hold, ending, callbacks);
            }
        }
    }

    /// Leaves the reply to a release that was sent to the next request of its part.
    fn owe_reply(
        self: &Arc<Self>,
        acquired: &Acquired,
        ending: Ending,
        mut sent: LeaseRequest,
        number: u64,
    ) {
        let (part, key) = (acquired.hold.part, acquired.hold.key());
        // The name is passed on below. From then on the queue of the part keeps requests for it behind the release.
        let passed_on = Ending {
            keeps_name: false,
            ..ending
        };
        let mut release = self.new_release(dropped(acquired, passed_on));
        release.is_sent = true;
        sent.deadline = release.end_from(self.clock.now());
        let (request, settlement) = (Request::Lease(sent), Settlement::Release(release));
        let owed = Entry::unattended(request, settlement);
        self.end_send(part, Some(number), Some(owed));
        self.timer.note(self.clock.now() + MAX_QUEUED);
        self.pass_on(key, ending);
    }

    /// Ends the sending of a release, which is `owed` if it was sent.
    #[inline(always)]
    fn end_send(self: &Arc<Self>, part: usize, number: Option<u64>, owed: Option<Arc<Entry>>) {
        if let Some(number) = number {
            let next = self.parts.get(part).requests.end_send(number, owed);
            self.start_sender(part, next);
        }
    }

    /// Ends guards of one acquisition that are dropped, in the reverse order of their names: a thread that waits for the
    /// first name goes on to the others, and these are free then. From `end` on, their thread sends nothing.
    pub(crate) fn release_all_dropped(self: &Arc<Self>, all: &[Acquired], end: HostInstant) {
        if all.iter().any(|it| it.hold.process != process_id()) {
            return;
        }
        if !self.may_travel(all) {
            let all = all.iter().rev();
            return all.for_each(|it| self.release_dropped_until(it, end));
        }
        self.release_together(all, |acquired, ending, now| {
            (
                dropped(acquired, ending),
                self.may_send(acquired, ending, now),
            )
        });
    }

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
    fn may_travel(&self, all: &[Acquired]) -> bool {
        all.len() > 1 && self.capabilities.batch() > 1
    }

    /// Ends guards of one acquisition, in the reverse order of their names, and leaves the releases to the keeper's
    /// threads. `unreleased` returns what they get, and whether the release goes with the next batch.
    fn release_together<'a>(
        self: &Arc<Self>,
        all: &'a [Acquired],
        mut unreleased: impl FnMut(&'a Acquired, Ending, HostInstant) -> (Box<UnreleasedGuard>, bool),
    ) {
        let now = self.clock.now();
        let (mut sent, mut ended) = (Vec::new(), Vec::new());
        for acquired in all.iter().rev() {
            let Some((ending, lease, callbacks)) = self.end_guard(acquired, now) else {
                continue;
            };
            ended.push((acquired, ending, callbacks));
            let (unreleased, may_send) = unreleased(acquired, ending, now);
            match lease {
                Some(lease) if may_send => {
                    let release = self.new_release(unreleased);
                    sent.push(self.unattended(lease, release));
                }
                lease => self.release_later(lease, unreleased, None),
            }
        }
        self.send_unattended(&sent.iter().collect::<Vec<_>>());
        for (acquired, ending, callbacks) in ended {
            self.run_callbacks(&acquired.hold, ending, callbacks);
        }
    }

    /// Ends a guard in this process. Returns its lease and its callbacks as [`Hold::end`] does. `None` if its lease was
    /// handed over, which is reported.
    #[inline(always)] // See the module.
    fn end_guard(
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
                let release = self.new_release(guard);
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

    /// Passes the name of an ended guard on, calls the user's code, and reports the end.
    fn conclude(
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

    /// Makes the release of a guard's lease that no caller waits for, and counts it.
    fn new_release(&self, guard: Box<UnreleasedGuard>) -> Release {
        let hold = &guard.acquired.hold;
        let (part, until) = (hold.part, self.clock.now() + hold.policy.ttl());
        self.count_release(part);
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
    fn run_callbacks(&self, hold: &Arc<Hold>, ending: Ending, callbacks: Callbacks) {
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

fn dropped(acquired: &Acquired, ending: Ending) -> Box<UnreleasedGuard> {
    Box::new(UnreleasedGuard {
        acquired: acquired.clone(),
        ending,
        holder: None,
    })
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
