//! Renewal: the batches in which leases are renewed, what their answers ask for, and losses. `background.rs` finds what
//! is due.

use std::sync::Arc;

use crate::clock::HostInstant;
use crate::contract::provider::{ErasedLease, Renewal};
use crate::error::Error;
use crate::sync::run_caught;

use super::Engine;
use super::hold::lease::Asked;
use super::hold::{Hold, HoldState};
use super::travel::request::{Answer, LeaseRequest, Request, Settlement};
use super::travel::sender::{Reply, unanswered};

impl Engine {
    /// Reports a loss to the observer and runs the callbacks of the guards that had the hold, unless another thread
    /// has begun to. The one that ends a guard does it if no thread of the keeper has.
    pub(super) fn notify_lost(&self, hold: &Arc<Hold>) {
        if !hold.must_notify_loss() {
            return;
        }
        let lock = self.observed_hold(hold);
        for number in hold.guards() {
            self.notifier.notify(|o| o.lost(&lock, hold.token(number)));
        }
        for (number, callback) in hold.take_callbacks() {
            run_caught(|| {
                if !hold.is_ended(number) {
                    callback();
                }
            });
        }
    }

    /// Renews leases of a part; each gets its answer.
    pub(super) fn renew_batch(self: &Arc<Self>, part: usize, holds: &[Arc<Hold>]) {
        let (clock, round) = (&*self.clock, self.parts.get(part).health.checks.rounds());
        let take = |hold: &Arc<Hold>| Some((Arc::clone(hold), hold.take_to_renew(clock)?));
        let taken: Vec<_> = holds.iter().filter_map(take).collect();
        let asked_at = clock.now();
        let requests = taken.into_iter().map(|(hold, (lease, deadline))| {
            let ttl = hold.renewal_ttl(asked_at, deadline);
            let request = LeaseRequest::renew(lease, ttl, deadline);
            ((hold, ttl), Request::Lease(request))
        });
        let (taken, requests): (Vec<_>, Vec<_>) = requests.unzip();
        let answers = self.exchange_all(part, requests);
        for ((hold, ttl), answer) in taken.into_iter().zip(answers) {
            let asked = Asked {
                at: asked_at,
                ttl,
                round,
                by_hand: false,
            };
            // The observer has the error.
            let _ = self.settle_renewal(&hold, answer, &asked);
        }
        let checks = &self.parts.get(part).health.checks;
        if checks.end_renewals(1, clock.now()) {
            self.timer.note(HostInstant::from_nanos(0));
        }
    }

    /// Renews a lease for its guard's holder, after a renewal that is under way.
    pub(crate) fn renew_now(self: &Arc<Self>, hold: &Arc<Hold>) -> Result<Renewal, Error> {
        let Some((lease, deadline)) = hold.wait_to_renew(&*self.clock) else {
            return Ok(Renewal::Lost);
        };
        let checks = &self.parts.get(hold.part).health.checks;
        let (round, ttl) = (checks.rounds(), hold.policy.ttl());
        let asked = Asked {
            at: self.clock.now(),
            ttl,
            round,
            by_hand: true,
        };
        let answer = match self.ask(LeaseRequest::renew(lease, ttl, deadline)) {
            Reply::Answered(answer) => self.settle_renewal(hold, answer, &asked),
            Reply::UnderWay(entry) => {
                let hold = Arc::clone(hold);
                self.leave(&entry, Settlement::Renewal { hold, asked });
                Err(unanswered())
            }
        };
        answer.map_err(|error| self.located(&hold.name, error))
    }

    /// Schedules the renewal of a lease for now.
    pub(super) fn verify(&self, hold: &Hold) {
        hold.doubt();
        self.queue.note_due(hold.key(), hold.due());
        self.timer.note(HostInstant::from_nanos(hold.due()));
    }

    /// Does what the answer to a renewal asks for, and returns it.
    pub(super) fn settle_renewal(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        answer: Answer,
        asked: &Asked,
    ) -> Result<Renewal, Error> {
        let (lease, answer) = answer.renewed();
        if let Some(lease) = lease {
            self.apply_renewal(hold, lease, &answer, asked);
        }
        answer
    }

    /// Brings a lease back from its renewal, and reports the store's answer.
    pub(super) fn apply_renewal(
        self: &Arc<Self>,
        hold: &Arc<Hold>,
        lease: ErasedLease,
        answer: &Result<Renewal, Error>,
        asked: &Asked,
    ) {
        let (now, checks) = (self.clock.now(), &self.parts.get(hold.part).health.checks);
        let retry_at = answer
            .as_ref()
            .err()
            .map(|_| now + checks.retry_in(now, asked.ttl));
        if let Some(unwanted) = hold.bring_back(lease, answer, asked, retry_at, &*self.clock) {
            self.release_unwanted(unwanted, hold.policy.ttl());
        }
        self.notifier.notify(|o| {
            let (lock, token) = (self.observed_hold(hold), hold.token(hold.latest()));
            match answer {
                Ok(Renewal::Renewed) => o.renewed(&lock, token),
                Ok(Renewal::Lost) => {}
                Err(error) => o.renewal_unknown(&lock, token, error),
            }
        });
        let due = match hold.state(self.clock.now()) {
            HoldState::Held => hold.due(),
            HoldState::Lost => 0,
            HoldState::Released => return,
        };
        self.queue.note_due(hold.key(), due);
        self.timer.note(HostInstant::from_nanos(due));
        if asked.round != checks.rounds() {
            self.verify(hold);
        }
    }
}
