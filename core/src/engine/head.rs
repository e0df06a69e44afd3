//! Acquiring a name from the store, as the head of its wait queue.
//!
//! If a reply is missing at the deadline, the lock is busy if the store showed another holder shortly before. A
//! busy server may take longer than the 80 ms that are left then.

use std::sync::Arc;

use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, ErasedLease, Grant, Renewal};
use crate::error::{Error, ErrorKind};
use crate::options::LeaseTerms;
use crate::token::FencingToken;

use super::acquire::Acquisition;
use super::hold::Hold;
use super::hold::acquired::Acquired;
use super::key::Key;
use super::travel::request::{Attempt, LeaseRequest, Settlement, is_no_answer};
use super::travel::sender::{Reply, unanswered};
use super::{ATTEMPT_LIMIT, Engine};

impl Acquisition<'_, '_> {
    /// Acquires the name from the store as the head of its queue.
    pub(super) fn acquire_from_store(
        &self,
        permit: &mut HeadPermit<'_>,
    ) -> Result<Option<Arc<Hold>>, Error> {
        let (engine, request) = (self.engine, &self.request);
        if request.is_cancelled() {
            return Err(engine.cancelled());
        }
        self.retry.borrow_mut().begin(request.started());
        let result = self.ask();
        let is_reply_lost = self.retry.borrow_mut().end();
        // A cancelled request need not have seen a holder.
        let is_cancelled = request.is_cancelled();
        let is_over = match &result {
            Ok(Some(_)) => false,
            Ok(None) => is_cancelled,
            Err(_) => true,
        };
        if is_over && is_reply_lost {
            permit.abandon(request);
        }
        match result {
            Ok(None) | Err(_) if is_cancelled => Err(engine.cancelled()),
            Ok(None) => {
                // The answer was noted where it came: this is no other one.
                self.retry.borrow_mut().begin(request.started());
                request.contended();
                Ok(None)
            }
            Err(error) if self.is_busy(&error) => Ok(None),
            result => result,
        }
    }

    /// Returns whether a wait that ended with this error ended as busy: the store showed another holder, and has failed
    /// no request since. A busy store may take longer to reply than there was time. A store that has been silent for longer
    /// than a request may take may be gone, and the holder with it.
    fn is_busy(&self, error: &Error) -> bool {
        let now = self.request.now();
        let is_over = self.request.deadline.is_some_and(|at| now >= at);
        let is_silent = error.kind() == ErrorKind::Unknown || error.is_not_sent();
        let limit = self.engine.capabilities.attempt_limit();
        let is_seen = self.busy_at.get().is_some_and(|at| now < at + limit);
        is_over && is_silent && is_seen && !self.health().is_in_doubt()
    }

    /// Asks the store until it answers, or the retries end.
    fn ask(&self) -> Result<Option<Arc<Hold>>, Error> {
        let (engine, request) = (self.engine, &self.request);
        // This thread waits for the answer to another one. Those that ride no outage out do not.
        if self.rides_out
            && let Some((_, cause)) = self.health().outage()
        {
            engine.queue.fail(self.key, false, &cause);
        }
        self.retry.borrow_mut().before_first()?;
        loop {
            let is_retry = self.retry.borrow().lost_reply().is_some();
            request.is_retry.set(is_retry);
            request.answered_at.set(None);
            let asked = (self.part, self.retry.borrow().asked_at());
            let error = match engine.attempt_or_wait(request, asked, self.cancel.is_some()) {
                // Another holder has the name, or the request was cancelled.
                Ok(None) => return Ok(None),
                Ok(Some(grant)) => {
                    self.busy_at.set(None);
                    match engine.confirm_grant(request, self.terms, grant) {
                        Ok(Some(hold)) => return Ok(Some(hold)),
                        Ok(None) if request.deadline.is_some_and(|at| request.now() >= at) => {
                            return Err(expired());
                        }
                        Ok(None) => continue,
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            engine.fail_head(self.key, self.rides_out, &error);
            let answered_at = request.answered_at.get();
            let paused = self.retry.borrow_mut().pause(&error, answered_at);
            paused.map_err(|error| self.retry.borrow_mut().last(error))?;
        }
    }
}

impl Engine {
    /// Records that the store is unreachable for the head, which goes on, if this error says so.
    pub(super) fn fail_head(&self, key: Key<'_>, rides_out: bool, error: &Error) {
        let says_nothing = error.is_of_name() || error.is_not_sent();
        let is_unreachable = error.kind() == ErrorKind::Unavailable && !says_nothing;
        if rides_out && is_unreachable {
            self.queue.fail(key, false, error);
        }
    }

    /// Makes a hold of a grant. `None` if the lease had ended before its grant was seen.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn confirm_grant(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        terms: LeaseTerms,
        mut grant: Grant<ErasedLease>,
    ) -> Result<Option<Arc<Hold>>, Error> {
        let margin = self.margin(request.ttl);
        let first_token = match FencingToken::first(grant.epoch, self.settings.epoch_offset) {
            _ if request.is_cancelled() => {
                return Err(self.give_up(request, grant.lease, self.cancelled()));
            }
            Ok(token) => token,
            Err(error) => return Err(self.give_up(request, grant.lease, error)),
        };
        // See `AcquireRequest::started`.
        let mut now = if grant.asked_at == request.started() {
            grant.asked_at
        } else {
            request.now()
        };
        // The store did the waiting, or this process was stopped before it read the reply.
        if now.saturating_since(grant.asked_at) > margin {
            if now >= request.end() {
                return Err(self.give_up(request, grant.lease, late()));
            }
            grant.asked_at = now;
            request.answered_at.set(Some(now));
            let ttl = request.ttl;
            let deadline = request.end().min(now + ttl);
            let renewal = LeaseRequest::renew(grant.lease, ttl, deadline);
            // The caller leaves at its deadline or a cancel, whatever the store does.
            let answer = match self.ask_by_keeper(renewal, request.cancel) {
                Reply::Answered(answer) => answer,
                Reply::UnderWay(entry) => {
                    request.owner.set(None);
                    self.leave(&entry, Settlement::GiveBack(ttl));
                    return Err(unanswered());
                }
            };
            match answer.renewed() {
                (Some(lease), Ok(Renewal::Renewed)) => grant.lease = lease,
                (Some(lease), Err(error)) => return Err(self.give_up(request, lease, error)),
                _ => return Ok(None),
            }
            now = request.now();
        }
        Ok(Some(Arc::new(Hold::new(
            request.name.clone(),
            terms,
            margin,
            grant,
            first_token,
            now,
        ))))
    }
}

/// Returns the error of an attempt whose lease had ended before its grant was seen. No other holder was seen.
pub(super) fn expired() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store granted the lock, and its answer came after that lease had ended; try again, with a longer ttl where this happens often",
    )
}

/// Returns the error of an acquisition that had ended before its grant was seen.
fn late() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store granted the lock after the wait was over, so it was given back; wait longer",
    )
}

/// The right to ask the store for a name. It is passed on also when the provider panics.
pub(super) struct HeadPermit<'a> {
    engine: &'a Arc<Engine>,
    key: Key<'a>,
    /// The part of the store that keeps the name.
    part: usize,
    /// The number of rounds of verification before the store was asked.
    round: u64,
    /// The error of a store that did not answer.
    store_error: Option<Error>,
    /// An attempt without a reply, of which nothing may stay behind.
    abandoned: Option<Attempt>,
}

impl<'a> HeadPermit<'a> {
    pub(super) fn new(engine: &'a Arc<Engine>, key: Key<'a>, part: usize) -> Self {
        Self {
            engine,
            key,
            part,
            round: engine.parts.get(part).health.checks.rounds(),
            store_error: None,
            abandoned: None,
        }
    }

    /// Schedules the release of what an attempt without a reply may have been granted. A thread of the keeper sends it,
    /// before another thread of the process asks for the name.
    pub(super) fn abandon(&mut self, request: &AcquireRequest<'_>) {
        // Without an owner, what it may have been granted was given up already.
        if request.owner.get().is_some() {
            let end = request.now() + ATTEMPT_LIMIT;
            self.abandoned = Some(Attempt::of(request, end));
        }
    }

    /// Ends the right with what the store answered.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn end(
        mut self,
        answer: Result<Option<Arc<Hold>>, Error>,
    ) -> Result<Option<Acquired>, Error> {
        match answer {
            Ok(Some(hold)) => {
                self.grant(&hold);
                Ok(Some(Acquired::first(hold)))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                // The others ask by themselves what the store says to their own requests.
                let is_failure = is_no_answer(error.kind()) && !error.is_not_sent();
                self.store_error = is_failure.then(|| error.clone());
                Err(error)
            }
        }
    }

    /// Gives the name to the hold instead of the next head.
    #[inline(always)] // As in `release.rs`.
    fn grant(self, hold: &Arc<Hold>) {
        let (engine, round, due) = (self.engine, self.round, hold.due());
        let checks = &engine.parts.get(self.part).health.checks;
        engine.queue.hold(self.key, Arc::clone(hold), due);
        // The name has a hold now. Nothing is passed on, and there is no error to drop.
        std::mem::forget(self);
        engine.timer.note(HostInstant::from_nanos(due));
        // A round that began before the hold was in the queue did not concern it.
        if round != checks.rounds() {
            engine.verify(hold);
        }
    }
}

impl Drop for HeadPermit<'_> {
    fn drop(&mut self) {
        let store_error = self.store_error.take();
        match self.abandoned.take() {
            Some(attempt) => {
                let of = (self.key, self.part);
                self.engine.abandon_later(of, store_error, attempt);
            }
            None => self.engine.queue.pass(self.key, store_error),
        }
    }
}
