//! Drops of guards: the release is sent, and no thread waits for the reply.
//!
//! If nothing is under way, the guard's own thread sends it. The store answers at once, or owes the reply, which goes
//! with the next request of the part: see `travel/queue.rs`. Otherwise the release goes with the next batch. A drop
//! sends nothing if the guard is lost, if a renewal has the lease, or while the store does not answer. In a forked child it
//! does nothing: the parent has the lock.

use std::sync::Arc;

use crate::clock::HostInstant;
use crate::contract::batch::ReleaseDispatch;
use crate::contract::provider::ErasedLease;
use crate::process::process_id;
use crate::sync::run_caught;

use super::Engine;
use super::hold::Callbacks;
use super::hold::acquired::{Acquired, Ending, UnreleasedGuard};
use super::threads::MAX_QUEUED;
use super::travel::request::{
    LeaseRequest, LeaseVerb, RELEASED, Request, Settlement, is_no_answer, panicked,
};
use super::travel::sender::{Entry, unanswered};

impl Engine {
    /// Ends a guard that is dropped.
    pub(crate) fn release_dropped(self: &Arc<Self>, acquired: &Acquired) {
        if acquired.hold.process == process_id() {
            self.release_dropped_until(acquired, HostInstant::NEVER);
        }
    }

    /// Ends a guard that is dropped. From `end` on, its thread sends nothing.
    #[inline(always)] // As in `release.rs`.
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

    /// Ends guards of one acquisition, in the reverse order of their names, and leaves the releases to the keeper's
    /// threads. `unreleased` returns what they get, and whether the release goes with the next batch.
    pub(super) fn release_together<'a>(
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
                    let release = self.begin_release(unreleased);
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
        let release = self.begin_release(dropped(acquired, ending));
        sent.deadline = release.end_from(self.clock.now());
        let (request, settlement) = (Request::Lease(sent), Settlement::Release(release.sent()));
        let owed = Entry::unattended(request, settlement);
        self.end_send(part, Some(number), Some(owed));
        self.timer.note(self.clock.now() + MAX_QUEUED);
        // What this process asks from here on goes behind the release.
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
}

fn dropped(acquired: &Acquired, ending: Ending) -> Box<UnreleasedGuard> {
    Box::new(UnreleasedGuard {
        acquired: acquired.clone(),
        ending,
        holder: None,
    })
}
