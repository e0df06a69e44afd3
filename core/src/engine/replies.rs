//! What the answers to requests say of the store. Each is noted where the backend was called, and not where its caller
//! waits: a caller may have stopped to wait before.

use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};
use crate::provider::AcquireRequest;

use super::Engine;
use super::exchange::{AskedAbout, AttemptAnswer, Attempted, LeaseAnswer, LeaseAsk};
use super::outage::{Asked, Unanswered};

/// What an answer says of the store.
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
        ErrorKind::Unavailable | ErrorKind::Unknown => News::NoReply(error),
        ErrorKind::PoolExhausted | ErrorKind::Cancelled => News::Nothing,
        _ => News::Reply,
    }
}

fn of_attempt(answer: &AttemptAnswer) -> News<'_> {
    answer.as_ref().map_or_else(of_error, |_| News::Reply)
}

fn of_lease(answer: &LeaseAnswer) -> News<'_> {
    match answer {
        Ok(true) => News::Reply,
        Ok(false) => News::Loss,
        Err(error) => of_error(error),
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
        match of_attempt(answer) {
            // It may have ended without a reply.
            _ if request.is_cancelled() => {}
            News::Reply => self.answered(part, asked_at),
            News::NoReply(error) => {
                let answered_at = request.answered_at.get();
                // A store that has shown another holder was reached until some time in the wait.
                let asked_at = answered_at.map_or(asked_at, |_| request.now());
                self.note_failed_attempt(part, asked_at, request.end(), error);
            }
            News::Loss | News::Nothing => {}
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
        if let News::NoReply(error) = of_error(error) {
            let unanswered = Unanswered {
                error,
                asked_at,
                deadline,
                asked: Asked::ForName,
            };
            self.unanswered(part, &unanswered);
        }
    }

    /// Notes the answer to a request about a lease that its caller's thread made.
    #[inline(always)] // As in `release.rs`.
    pub(super) fn note_lease(&self, ask: &LeaseAsk, answer: &LeaseAnswer) {
        let part = ask.lease.part;
        match of_lease(answer) {
            News::Reply => self.answered(part, ask.asked_at),
            News::Loss => self.note_loss(part),
            News::NoReply(error) => {
                let unanswered = Unanswered {
                    error,
                    asked_at: ask.asked_at,
                    deadline: ask.deadline,
                    asked: Asked::ForLease,
                };
                self.unanswered(part, &unanswered);
            }
            News::Nothing => {}
        }
    }

    /// Verifies the other leases if one has ended while the store was in doubt: it may be another server.
    fn note_loss(&self, part: usize) {
        let part = self.parts.get(part);
        if part.outage.is_in_doubt() {
            self.verify_part(part);
        }
    }

    /// Notes the answers to a batch that was sent to a part at `asked_at`.
    pub(super) fn note_batch(
        &self,
        (part, asked_at): (usize, HostInstant),
        attempts: &[Attempted],
        asks: &[AskedAbout],
    ) {
        let attempts = attempts.iter().map(|(attempt, answer)| {
            let (news, deadline) = (of_attempt(answer), attempt.deadline);
            (news, Asked::ForName, deadline)
        });
        let asks = asks.iter().map(|(ask, answer)| {
            let (news, deadline) = (of_lease(answer), ask.deadline);
            (news, Asked::ForLease, deadline)
        });
        let all: Vec<_> = attempts.chain(asks).collect();
        let is_reached = all.iter().any(|(news, ..)| matches!(news, News::Reply));
        if is_reached {
            self.answered(part, asked_at);
        }
        for (news, asked, deadline) in all {
            match news {
                News::Loss => self.note_loss(part),
                News::NoReply(error) => {
                    let unanswered = Unanswered {
                        error,
                        asked_at,
                        deadline,
                        asked: if is_reached {
                            Asked::BesideAnswers
                        } else {
                            asked
                        },
                    };
                    self.unanswered(part, &unanswered);
                }
                News::Reply | News::Nothing => {}
            }
        }
    }
}
