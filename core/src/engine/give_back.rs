//! What goes back to the store on the keeper's threads: the leases of dropped guards, releases that the store has not
//! answered to a guard's holder, grants that came too late, and what an attempt without a reply may have been granted.
//!
//! A release is asked once like every other request. If the store does not answer, a job repeats it until the store
//! does, or has ended the lease by itself. These jobs have threads of their own, so that no renewal waits behind a
//! release that hangs.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::provider::{AcquireRequest, ErasedLease, GRACE, Released};
use crate::error::{Error, ErrorKind};
use crate::sync::run_caught;

use super::Engine;
use super::background::LastingUse;
use super::backoff::Limits;
use super::hold::acquired::{ReleaseNews, UnreleasedGuard};
use super::hold::lease::Unwanted;
use super::key::Key;
use super::retry::Retry;
use super::threads::MAX_QUEUED;
use super::travel::request::{
    Answer, Attempt, LeaseRequest, RELEASE_LIMIT, Release, Settlement, is_no_answer,
};
use super::travel::sender::Reply;

/// What a job gives back to the store.
pub(crate) enum Return {
    Lease(LeaseRequest, Release),
    /// What an attempt without a reply may have been granted, in this part of the store. No thread of this process
    /// requests its name meanwhile.
    Attempt(usize, Attempt),
    /// Nothing but the report of what became of the release of a dropped guard.
    Report(Box<UnreleasedGuard>, Result<Released, Error>),
}

/// What a job gives back, and the part of the store. Releases may wait until their ttl is over, and nothing else waits
/// behind them. No other request overtakes a release that was sent, so it does not wait behind the others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReturnKind {
    Release(usize),
    SentRelease(usize),
    Attempt(usize),
    Report(usize),
}

impl Engine {
    /// Releases the lease of a guard that has ended. `lease` is `None` if a renewal has it, or if it was released before.
    pub(super) fn release_later(
        self: &Arc<Self>,
        lease: Option<ErasedLease>,
        guard: Box<UnreleasedGuard>,
        lost_reply: Option<Error>,
    ) {
        let (part, ttl) = (guard.acquired.hold.part, guard.acquired.hold.policy.ttl());
        self.count_release(part);
        let (guard, lease) = match lease {
            Some(lease) => (guard, Some(lease)),
            None => {
                let hold = Arc::clone(&guard.acquired.hold);
                match hold.release_after_renewal(guard) {
                    Ok(()) => return,
                    Err(unreleased) => unreleased,
                }
            }
        };
        let mut release = Release::new(part, self.clock.now() + ttl, Some(guard));
        release.lost_reply = lost_reply.filter(|it| it.kind() == ErrorKind::Unknown);
        match lease {
            Some(lease) => self.start_release(lease, release),
            None => self.end_release(release, Ok(Released::AlreadyLost)),
        }
    }

    /// Releases a lease that no guard needs.
    pub(super) fn give_back(self: &Arc<Self>, lease: ErasedLease, ttl: Duration) {
        self.release_unwanted(Unwanted { lease, guard: None }, ttl);
    }

    /// Releases a lease that came back from its renewal, and that no guard needs.
    pub(super) fn release_unwanted(self: &Arc<Self>, unwanted: Unwanted, ttl: Duration) {
        let Unwanted { lease, guard } = unwanted;
        // The release for a guard has been counted.
        if guard.is_none() {
            self.count_release(lease.part);
        }
        let release = Release::new(lease.part, self.clock.now() + ttl, guard);
        self.start_release(lease, release);
    }

    fn start_release(self: &Arc<Self>, lease: ErasedLease, release: Release) {
        let part = release.part;
        // A store that takes one operation a call is asked by several threads. In an outage a job waits for its end.
        if self.capabilities.batch() == 1 || self.parts.get(part).health.is_in_doubt() {
            let request = LeaseRequest::release(lease, release.end_from(self.clock.now()));
            return self.start_return(Return::Lease(request, release));
        }
        self.send_unattended(&[&self.unattended(lease, release)]);
    }

    /// Does what the answer to a release asks for.
    pub(super) fn settle_release(self: &Arc<Self>, mut release: Release, answer: Answer) {
        match answer.released() {
            (Some(lease), Err(error)) if is_no_answer(error.kind()) => {
                if release.is_sent {
                    self.fail_held(release.part, &error);
                }
                let guard = release.guard.as_ref();
                if let Some(holder) = guard.and_then(|guard| guard.holder.as_ref()) {
                    // An error: the holder has stopped to wait.
                    let _ = holder.send(ReleaseNews::Failed(error.clone()));
                }
                if release.is_sent || error.kind() == ErrorKind::Unknown {
                    release.lost_reply.get_or_insert(error);
                }
                let request = LeaseRequest::release(lease, release.end_from(self.clock.now()));
                self.start_return(Return::Lease(request, release));
            }
            (_, answer) => {
                let lost_reply = release.lost_reply.take();
                let answer = answer.and_then(|found| found_after(found, lost_reply.as_ref()));
                self.end_release(release, answer);
            }
        }
    }

    /// Ends a release: passes the name of its guard on, and has the guard's end reported.
    fn end_release(self: &Arc<Self>, release: Release, answer: Result<Released, Error>) {
        if release.is_sent {
            let next = self.parts.get(release.part).requests.settle();
            self.start_sender(release.part, next);
        }
        let Some(guard) = release.guard else {
            return self.uncount_release(release.part);
        };
        self.pass_on(guard.acquired.hold.key(), guard.ending);
        match &guard.holder {
            Some(holder) => {
                self.uncount_release(release.part);
                // An error: the holder has stopped to wait, and has reported that.
                let _ = holder.send(ReleaseNews::Ended(answer));
            }
            // A thread that sends requests, for other names too, must not run the observer's code.
            None if self.capabilities.batch() > 1 && self.notifier.is_observed() => {
                self.start_return(Return::Report(guard, answer));
            }
            None => self.report_dropped(&guard, answer),
        }
    }

    fn report_dropped(&self, guard: &UnreleasedGuard, answer: Result<Released, Error>) {
        // The observer has the error.
        let _ = self.report_end(&guard.acquired, guard.ending, answer);
        self.uncount_release(guard.acquired.hold.part);
    }

    /// Frees what the head's attempt may have been granted. Then the next thread may request the name.
    pub(super) fn abandon_later(
        self: &Arc<Self>,
        (key, part): (Key<'_>, usize),
        store_error: Option<Error>,
        attempt: Attempt,
    ) {
        self.count_release(part);
        self.queue.keep(key, store_error);
        self.start_return(Return::Attempt(part, attempt));
    }

    /// Schedules what goes back on threads of its own.
    pub(super) fn start_return(self: &Arc<Self>, what: Return) {
        let kind = match &what {
            Return::Lease(_, release) if release.is_sent => ReturnKind::SentRelease(release.part),
            Return::Lease(_, release) => ReturnKind::Release(release.part),
            Return::Attempt(part, _) => ReturnKind::Attempt(*part),
            Return::Report(guard, _) => ReturnKind::Report(guard.acquired.hold.part),
        };
        if self.start_returns(vec![(kind, (self.lasting_use(), what))]) {
            self.timer.note(self.clock.now() + MAX_QUEUED);
        }
    }

    /// As [`start_work`](Self::start_work), for jobs that may hang.
    pub(super) fn start_returns(&self, jobs: Vec<(ReturnKind, (LastingUse, Return))>) -> bool {
        let run = |(used, what): (LastingUse, Return)| used.engine.carry_back(what);
        self.returns.push(jobs, true, &run)
    }

    /// Gives something back to the store until that has answered.
    pub(super) fn carry_back(self: &Arc<Self>, what: Return) {
        match what {
            Return::Lease(request, release) => self.release_until_answered(request, release),
            Return::Attempt(part, attempt) => {
                run_caught(|| self.provider.abandon(&attempt.request(&*self.clock)));
                self.end_abandoned(part, &attempt);
            }
            Return::Report(guard, answer) => self.report_dropped(&guard, answer),
        }
    }

    /// Ends what no thread can give back.
    pub(super) fn end_return(self: &Arc<Self>, what: Return) {
        match what {
            Return::Lease(_, release) => {
                let text = "no thread could be started for the release; raise the limit of threads";
                let error = Error::new(ErrorKind::Unavailable, text);
                self.end_release(release, Err(not_released(error)));
            }
            Return::Attempt(part, attempt) => self.end_abandoned(part, &attempt),
            Return::Report(guard, answer) => self.report_dropped(&guard, answer),
        }
    }

    fn end_abandoned(&self, part: usize, attempt: &Attempt) {
        self.queue.released(attempt.key());
        self.uncount_release(part);
    }

    /// Asks the store to release a lease until it answers, or has ended the lease by itself.
    fn release_until_answered(self: &Arc<Self>, mut request: LeaseRequest, mut release: Release) {
        let (part, is_sent) = (release.part, release.is_sent);
        // No thread of this process requests the name until the release is finished.
        let keeps = |it: &&UnreleasedGuard| it.ending.keeps_name;
        let guard = release.guard.as_deref();
        let hold = guard.filter(keeps);
        let hold = hold.map(|guard| Arc::clone(&guard.acquired.hold));
        let holder = guard.and_then(|guard| guard.holder.clone());
        let fail = |cause: &Error, lost_reply: Option<&Error>| {
            if let Some(hold) = &hold {
                self.queue.fail(hold.key(), true, cause);
            }
            if is_sent {
                self.fail_held(part, cause);
            }
            if let Some(holder) = holder.as_ref().filter(|_| lost_reply.is_none()) {
                // An error: the holder has stopped to wait.
                let _ = holder.send(ReleaseNews::NotSent(cause.clone()));
            }
        };
        let limits = Limits {
            clock: &*self.clock,
            until: release.until,
            cancel: Some(&self.closing.ended),
        };
        let mut retry = Retry::new(limits, self.clock.now()).continued(release.lost_reply.take());
        let health = &self.parts.get(part).health;
        // The one that asks in an outage may ask for this name, and wait for this release.
        if !is_sent {
            retry.ride_out(health);
        }
        if let Some((_, cause)) = health.outage() {
            fail(&cause, retry.lost_reply());
        }
        let mut paused = retry.before_first();
        let answer = loop {
            if let Err(error) = paused {
                break Err(not_released(error));
            }
            request.deadline = release.end_from(self.clock.now());
            let answer = match self.ask(request) {
                Reply::Answered(answer) => answer.released(),
                Reply::UnderWay(entry) => {
                    release.lost_reply = retry.lost_reply().cloned();
                    return self.leave(&entry, Settlement::Release(release));
                }
            };
            let (lease, error) = match answer {
                (Some(lease), Err(error)) if is_no_answer(error.kind()) => (lease, error),
                (_, answer) => {
                    break answer.and_then(|found| found_after(found, retry.lost_reply()));
                }
            };
            if error.kind() == ErrorKind::Unavailable {
                fail(&error, retry.lost_reply());
            }
            request = LeaseRequest::release(lease, release.until);
            paused = retry.after(&error, None);
        };
        self.end_release(release, answer);
    }

    /// Releases a lease that no guard gets, and returns the reason for that. The caller waits for the answer until
    /// the end of its request, and after a cancel for 80 ms. Then the keeper's threads finish it.
    pub(super) fn give_up(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        lease: ErasedLease,
        reason: Error,
    ) -> Error {
        // The release may arrive late: it must not meet what a repeated request is granted.
        request.owner.set(None);
        let limit = match request.is_cancelled() {
            true => GRACE,
            false => RELEASE_LIMIT,
        };
        let (part, deadline) = (lease.part, request.end().min(request.now() + limit));
        match self.ask_by_keeper(LeaseRequest::release(lease, deadline), None) {
            Reply::Answered(answer) => {
                if let (Some(lease), Err(_)) = answer.released() {
                    self.give_back(lease, request.ttl);
                }
            }
            Reply::UnderWay(entry) => {
                self.count_release(part);
                let release = Release::new(part, self.clock.now() + request.ttl, None);
                self.leave(&entry, Settlement::Release(release));
            }
        }
        reason
    }
}

/// Returns the error of a release that ends without an answer.
fn not_released(cause: Error) -> Error {
    let text =
        "the store gave no answer to the release; it frees the lock after its ttl at the latest";
    Error::new(cause.kind(), text).with_source(cause)
}

/// Returns the result of a release. After an attempt without a reply, a lock that is gone may have been released by that
/// attempt: then the result is unknown. `lost_reply` is the error of such an attempt.
fn found_after(found: Released, lost_reply: Option<&Error>) -> Result<Released, Error> {
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
