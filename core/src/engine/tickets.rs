//! Tickets: a lease leaves this process, and another one goes on with it.
//!
//! A lease that was resumed is never handed over within the process: another process may resume it at any time, and
//! the next thread would not know.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::{AcquireRequest, ErasedLease, Grant, LeaseId, Released, Renewal};
use crate::error::{Error, ErrorKind};
use crate::mode::Mode;
use crate::name::LockName;
use crate::options::{AcquireOptions, LeaseTerms, Outage};
use crate::sync::run_caught;
use crate::token::FencingToken;

use super::backoff::Limits;
use super::hold::Hold;
use super::hold::acquired::{Acquired, Ending};
use super::hold::lease::Asked;
use super::key::Key;
use super::release::forget;
use super::report::AcquisitionReport;
use super::retry::Retry;
use super::travel::request::panicked;
use super::{ATTEMPT_LIMIT, Engine};

/// A lease that no process has.
pub(crate) struct DetachedLease {
    pub(crate) id: LeaseId,
    /// A time before the lease was extended for the last time.
    pub(crate) asked_at: HostInstant,
}

impl Engine {
    /// Ends a guard, and leaves its lease to a ticket. `None` if the lock is lost. After an error, the guard lives.
    pub(crate) fn detach(
        self: &Arc<Self>,
        acquired: &Acquired,
    ) -> Result<Option<DetachedLease>, Error> {
        let hold = &acquired.hold;
        let Some((lease, deadline)) = hold.wait_to_renew(&*self.clock) else {
            return Ok(None);
        };
        let asked = Asked {
            at: self.clock.now(),
            ttl: hold.policy.ttl(),
            round: self.parts.get(hold.part).health.checks.rounds(),
            by_hand: true,
        };
        let (mut lease, until) = (lease, deadline.min(asked.at + ATTEMPT_LIMIT));
        let detached = self.detach_lease(hold, &mut lease, asked.ttl, until);
        let now = self.clock.now();
        if let Ok(Some((id, asked_at))) = detached
            && let Some(callbacks) = hold.end_detached(now)
        {
            self.queue.detach(hold.key(), hold);
            forget(callbacks);
            let ending = Ending {
                keeps_name: false,
                in_time: true,
                held: acquired.reported_at.map(|at| now.saturating_since(at)),
            };
            self.report_end(acquired, ending, Ok(Released::Done))?;
            return Ok(Some(DetachedLease { id, asked_at }));
        }
        // A guard that was lost meanwhile has no ticket: its lease is released.
        let answer = detached.map(|id| match id {
            Some(_) => Renewal::Renewed,
            None => Renewal::Lost,
        });
        self.apply_renewal(hold, lease, &answer, &asked);
        answer.map_err(|error| self.located(&hold.name, error))?;
        Ok(None)
    }

    /// Asks the store to detach a lease, and repeats that after a lost reply.
    fn detach_lease(
        &self,
        hold: &Hold,
        lease: &mut ErasedLease,
        ttl: Duration,
        until: HostInstant,
    ) -> Result<Option<(LeaseId, HostInstant)>, Error> {
        let limits = Limits {
            clock: &*self.clock,
            until,
            cancel: None,
        };
        let mut retry = Retry::new(limits, self.clock.now());
        loop {
            let asked_at = self.clock.now();
            let answer = run_caught(|| self.provider.detach(lease, ttl, until))
                .unwrap_or_else(|| Err(panicked("detached the lease")));
            match answer {
                Ok(id) => {
                    self.answered(hold.part, asked_at);
                    return Ok(id.map(|id| (id, asked_at)));
                }
                Err(error) => {
                    self.note_failed_attempt(hold.part, asked_at, until, &error);
                    retry.after(&error, None)?;
                }
            }
        }
    }

    /// Goes on with a lease that a ticket passes on.
    pub(crate) fn resume(
        self: &Arc<Self>,
        name: &LockName,
        lease: LeaseId,
    ) -> Result<Acquired, Error> {
        let began = self.clock.now();
        let options = AcquireOptions::new();
        let terms = self.terms(&options);
        terms
            .policy
            .check(&self.capabilities)
            .and_then(|()| self.start_timer())
            .map_err(|error| self.located(name, error))?;
        let report = AcquisitionReport::begin(self, name, Mode::Exclusive, began);
        let deadline = self.deadline(&options, began);
        let end = self.end_of(deadline, began);
        let request = AcquireRequest::attempt(name, terms.policy.ttl(), &*self.clock)
            .resuming(lease)
            .ending_at(end)
            .cancelled_by(Some(&self.closing.token));
        let result = self.resume_until(&request, terms, deadline).map(Some);
        let mut result = result.map_err(|error| match request.is_cancelled() {
            true => self.located(name, self.cancelled()),
            false => self.located(name, error),
        });
        report.end(&mut result);
        result?.ok_or_else(ended)
    }

    /// Asks the store for the lease until it answers, or the wait is over.
    fn resume_until(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        terms: LeaseTerms,
        deadline: Option<HostInstant>,
    ) -> Result<Acquired, Error> {
        let key = Key::new(request.name, request.mode);
        let part = self.part_of(request.name, request.mode);
        let limits = Limits {
            clock: &*self.clock,
            until: deadline.unwrap_or(request.end()),
            cancel: request.cancel,
        };
        let mut retry = Retry::new(limits, request.started());
        match self.settings.outage {
            Outage::Wait if deadline.is_some() => retry.ride_out(&self.parts.get(part).health),
            _ => retry.limit_to(self.capabilities.attempt_limit()),
        }
        retry.before_first()?;
        loop {
            if request.is_cancelled() {
                return Err(self.cancelled());
            }
            // The lease may be the one that is released, and the request could overtake that on another connection.
            if self.queue.is_releasing(key) {
                retry.after(&under_release(), None)?;
                continue;
            }
            request.is_retry.set(retry.lost_reply().is_some());
            let asked = (part, retry.asked_at());
            let round = self.parts.get(part).health.checks.rounds();
            match self.attempt_or_wait(request, asked, false) {
                Ok(None) => return Err(ended()),
                Ok(Some(grant)) => return self.go_on_with(request, terms, grant, round),
                Err(error) => retry.after(&error, None)?,
            }
        }
    }

    /// Makes a guard of a lease that was resumed. All other guards of the name in this process are lost by that, or this
    /// one if the lease was resumed again since.
    fn go_on_with(
        self: &Arc<Self>,
        request: &AcquireRequest<'_>,
        terms: LeaseTerms,
        grant: Grant<ErasedLease>,
        round: u64,
    ) -> Result<Acquired, Error> {
        let (margin, now) = (self.margin(request.ttl), request.now());
        let token = FencingToken::first(grant.epoch, self.settings.epoch_offset)?;
        if now >= grant.asked_at + request.ttl - margin {
            let text = "the store's answer came after the lease had ended; a longer ttl gives it more time";
            return Err(Error::new(ErrorKind::Unknown, text));
        }
        let name = request.name.clone();
        let hold = Hold::new(name, terms, margin, grant, token, now).resumed();
        let hold = Arc::new(hold);
        let key = Key::new(&hold.name, Mode::Exclusive);
        for other in self.queue.adopt(key, Arc::clone(&hold), hold.due()) {
            // Two answers of the store may come here in the other order.
            let is_later = other.token(0) > hold.token(0);
            let former = if is_later { &hold } else { &other };
            former.lose();
            self.queue.note_due(key, 0);
            self.timer.note(HostInstant::from_nanos(0));
        }
        self.timer.note(HostInstant::from_nanos(hold.due()));
        if round != self.parts.get(hold.part).health.checks.rounds() {
            self.verify(&hold);
        }
        Ok(Acquired::first(hold))
    }
}

/// Returns the error of a resumption that waited for a release of the name for too long.
fn under_release() -> Error {
    Error::name_unavailable(
        "this process is releasing the lock, and the store has not answered that yet; try again later",
    )
}

fn ended() -> Error {
    Error::new(
        ErrorKind::Lost,
        "the lock of the ticket has ended: it was not resumed in time, was released, or was taken away; acquire it anew",
    )
}
