//! What the answers to requests say of the store. Each is noted where the backend was called, and not where its caller
//! waits: a caller may have stopped to wait before.
//!
//! A lease that has ended ends no outage: a backend whose
//! session is gone knows that without a reply.

use std::sync::Arc;

use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, Released};
use crate::contract::verifier::LeaseVerifier;
use crate::error::{Error, ErrorKind};

use super::Engine;
use super::health::{Asked, Health, Unanswered};
use super::travel::request::{AttemptAnswer, Found, Request};

/// What an answer says of the store.
#[derive(Clone, Copy)]
enum News<'a> {
    /// It was reached.
    Reply,
    /// The lease had ended. A backend may know that without a reply.
    Loss,
    /// It did not reply.
    NoReply(&'a Error),
    /// Nothing.
    Nothing,
}

fn of_error(error: &Error) -> News<'_> {
    match error.kind() {
        _ if error.is_of_name() => News::Reply,
        _ if error.is_not_sent() => News::Nothing,
        ErrorKind::Unavailable | ErrorKind::Unknown => News::NoReply(error),
        ErrorKind::PoolExhausted | ErrorKind::Cancelled => News::Nothing,
        _ => News::Reply,
    }
}

/// What the answer to an attempt or to a request about a lease says.
fn of_answer<'a>(request: &Request, found: &'a Result<Found, Error>) -> News<'a> {
    match (request, found) {
        (_, Err(error)) => of_error(error),
        (_, Ok(Found::Panic)) => News::Nothing,
        (Request::Lease(_), Ok(Found::NotHeld)) => News::Loss,
        (_, Ok(_)) => News::Reply,
    }
}

impl Engine {
    /// Notes the answer to an attempt that its own thread made at `asked_at`.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn note_attempt(
        &self,
        request: &AcquireRequest<'_>,
        (part, asked_at): (usize, HostInstant),
        answer: &AttemptAnswer,
    ) {
        match answer.as_ref().map_or_else(of_error, |_| News::Reply) {
            // It may have ended without a reply.
            _ if request.is_cancelled() => {}
            News::NoReply(error) => {
                let answered_at = request.answered_at.get();
                // A store that has shown another holder was reached until some time in the wait.
                let asked_at = answered_at.map_or(asked_at, |_| request.now());
                self.note_failed_attempt(part, asked_at, request.end(), error);
            }
            news => {
                // A grant was asked for after the last busy answer. `Ok(None)` is that answer, and was noted.
                let answered_at = request.answered_at.get();
                let answered_at = answered_at.filter(|_| !matches!(answer, Ok(None)));
                let asked_at = answered_at.map_or(asked_at, |at| at.max(asked_at));
                self.note((part, asked_at), news, Asked::ForName, request.end());
            }
        }
    }

    /// Notes that the store did not answer an attempt that its own thread made at `asked_at`, or a part of its wait.
    #[cold]
    pub(super) fn note_failed_attempt(
        &self,
        part: usize,
        asked_at: HostInstant,
        deadline: HostInstant,
        error: &Error,
    ) {
        if let news @ News::NoReply(_) = of_error(error) {
            self.note((part, asked_at), news, Asked::ForName, deadline);
        }
    }

    /// Notes what the store has answered at once to the release of a guard that was dropped at `asked_at`.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn note_release(
        &self,
        made: (usize, HostInstant),
        answer: &Result<Released, Error>,
    ) {
        let news = match answer {
            Ok(Released::Done) => News::Reply,
            Ok(Released::AlreadyLost) => News::Loss,
            // The release is repeated, and that tells more.
            Err(_) => return,
        };
        self.note(made, news, Asked::ForLease, HostInstant::NEVER);
    }

    /// Notes what an answer says of a part, to a request that was made at `asked_at`.
    #[inline(always)] // As in `release.rs`.
    fn note(
        &self,
        (part, asked_at): (usize, HostInstant),
        news: News<'_>,
        asked: Asked,
        deadline: HostInstant,
    ) {
        match news {
            News::Reply => self.answered(part, asked_at),
            // It verifies the other leases if one has ended while the store was in doubt: it may be another server.
            News::Loss => {
                let health = &self.parts.get(part).health;
                if health.is_in_doubt() {
                    self.verify_part(health);
                }
            }
            News::NoReply(error) => {
                let unanswered = Unanswered {
                    error,
                    asked_at,
                    deadline,
                    asked,
                };
                let report = |since| self.report_outage(since, error);
                let health = &self.parts.get(part).health;
                health.fail(&unanswered, self.clock.now(), report);
            }
            News::Nothing => {}
        }
    }

    /// Notes that a part has replied to a request that was made at `asked_at`.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn answered(&self, part: usize, asked_at: HostInstant) {
        let health = &self.parts.get(part).health;
        match health.is_in_doubt() {
            false => health.hear(asked_at),
            true => {
                if health.recover(asked_at, || self.report_outage_end()) {
                    self.verify_part(health);
                }
            }
        }
    }

    /// Notes what was found by a batch that was sent to a part at `asked_at`.
    pub(super) fn note_batch(
        &self,
        (part, asked_at): (usize, HostInstant),
        requests: &[Request],
        found: &[Result<Found, Error>],
    ) {
        let all = || requests.iter().zip(found);
        let is_reply = |(request, found): &(&Request, &Result<Found, Error>)| {
            matches!(of_answer(request, found), News::Reply)
        };
        // The reply that was asked for last tells most.
        let replies = all().filter(is_reply);
        let last = replies.max_by_key(|(request, _)| request.asked_at(asked_at).as_nanos());
        let others = all().filter(|it| !is_reply(it));
        for (request, found) in last.into_iter().chain(others) {
            let asked = match request {
                _ if last.is_some() => Asked::BesideAnswers,
                Request::Attempt(_) => Asked::ForName,
                Request::Lease(_) => Asked::ForLease,
            };
            let news = of_answer(request, found);
            // Nobody waited for the reply to a release before this batch did: a time-out does not count from when that
            // was sent.
            let asked_at = match news {
                News::NoReply(_) => asked_at,
                _ => request.asked_at(asked_at),
            };
            self.note((part, asked_at), news, asked, request.deadline());
        }
    }
}

impl Engine {
    /// Schedules a check of the leases of a part, since the store answers again. The pace of the rounds decides when.
    fn verify_part(&self, health: &Health) {
        health.checks.note_return();
        self.timer.note(HostInstant::from_nanos(0));
    }

    /// Makes the handle by which the backend has the leases of this keeper verified.
    pub(super) fn lease_verifier(self: &Arc<Self>) -> LeaseVerifier {
        let (background, engine) = (Arc::clone(&self.background), Arc::downgrade(self));
        let keeper = Arc::downgrade(self);
        let verify = move || background.with(&engine, |it| it.verify_leases()).is_some();
        LeaseVerifier::new(keeper, verify)
    }

    /// Schedules a check of all leases, since the backend has noticed that some may have ended.
    fn verify_leases(&self) {
        for part in self.parts.iter() {
            part.health.checks.note_losses();
        }
        self.timer.note(HostInstant::from_nanos(0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::travel::request::LeaseRequest;
    use super::*;
    use crate::contract::provider::ErasedLease;

    #[test]
    fn only_an_error_without_a_reply_says_that_the_store_is_silent() {
        let of_kind = |kind| Error::new(kind, "the test's store says so");
        let news = |error: &Error| match of_error(error) {
            News::Reply => "reply",
            News::Loss => "loss",
            News::NoReply(_) => "no reply",
            News::Nothing => "nothing",
        };
        for (error, expected) in [
            (of_kind(ErrorKind::Unavailable), "no reply"),
            (of_kind(ErrorKind::Unknown), "no reply"),
            (of_kind(ErrorKind::PoolExhausted), "nothing"),
            (of_kind(ErrorKind::Cancelled), "nothing"),
            (of_kind(ErrorKind::InvalidName), "reply"),
            (Error::name_unavailable("moved"), "reply"),
            (Error::not_sent("no time"), "nothing"),
        ] {
            assert_eq!(news(&error), expected, "{error}");
        }
        let lease = || LeaseRequest::release(ErasedLease::new(()), HostInstant::NEVER);
        let of_lease =
            |found| matches!(of_answer(&Request::Lease(lease()), &Ok(found)), News::Loss);
        assert!(of_lease(Found::NotHeld) && !of_lease(Found::Held));
    }
}
