//! Renewal: which leases are due, the batches in which they are renewed, and losses.
//!
//! One thread watches the deadlines of all leases and never does I/O; workers renew the leases and
//! call the user's code.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::contract::provider::{ErasedLease, Renewal};
use crate::engine::timer::{MAX_SLEEP, Tick};
use crate::error::Error;
use crate::sync::run_caught;

use super::hold::lease::Asked;
use super::hold::{Hold, HoldState};
use super::threads::MAX_QUEUED;
use super::travel::request::{Answer, LeaseRequest, Request};
use super::travel::sender::{Reply, unanswered};
use super::travel::settlement::Settlement;
use super::{Engine, Job, JobKind};

impl Engine {
    /// Hands what is due to the workers. Returns when to poll again.
    pub(super) fn poll(self: &Arc<Self>, tick: Tick) -> HostInstant {
        let now = tick.now;
        if tick.jumped {
            self.queue.unpark_all();
            self.parts.iter().for_each(|part| part.health.unpark_all());
        }
        let mut due = Due::default();
        let next_round = self.begin_rounds(now);
        let mut next = due.gather(self, now, Duration::ZERO);
        // A lease that is due soon goes along with those that are due: many leases, few round trips.
        // It is no reason for a batch of its own.
        if !due.renew.is_empty() {
            next = due.gather(self, now, self.settings.lease.ttl() / 12);
        }
        for hold in &due.lost {
            self.queue.detach(hold.key(), hold);
        }
        let next = HostInstant::from_nanos(next).min(next_round);
        let mut next = next.min(self.send_overdue(now));
        let mut jobs = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let renew = due.renew.extract_if(.., |hold| hold.part == number);
            let renew: Vec<_> = renew.collect();
            let batches = renew.chunks(self.capabilities.renewals());
            part.health.checks.begin_renewals(batches.len());
            // It ends a round that has nothing to renew.
            part.health.checks.end_renewals(0, now);
            let renewals = batches.map(|batch| Job::Renew(number, batch.to_vec()));
            jobs.extend(renewals.map(|job| (JobKind::Renew(number), job)));
        }
        let lost = due.lost.into_iter().map(Job::NotifyLost);
        let outages = self.outage_reports.is_due().then_some(Job::NotifyOutages);
        jobs.extend(lost.chain(outages).map(|job| (JobKind::Notify, job)));
        if self.start_work(jobs) {
            next = next.min(now + MAX_QUEUED);
        }
        // Threads of the wait queue rely on the poll to notice a clock that jumped.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            next = next.min(now + MAX_SLEEP);
        }
        next
    }

    /// Begins the rounds of verification that are due. Returns when the next one is.
    fn begin_rounds(&self, now: HostInstant) -> HostInstant {
        let (mut verified, mut next) = (Vec::new(), HostInstant::NEVER);
        for (number, part) in self.parts.iter().enumerate() {
            let longest_gap = self.settings.lease.ttl() / 12;
            match part.health.checks.begin_round(now, longest_gap) {
                Some(begins) if begins > now => next = next.min(begins),
                Some(_) => verified.push(number),
                None => {}
            }
        }
        if !verified.is_empty() {
            self.queue.scan(u64::MAX, |hold| {
                if verified.contains(&hold.part) {
                    hold.doubt();
                }
                hold.due()
            });
        }
        next
    }

    /// Reports a loss to the observer and runs the callbacks of the guards that had the hold.
    pub(super) fn notify_lost(&self, hold: &Arc<Hold>) {
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
            let ttl = hold.renewal_ttl(asked_at);
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

/// The holds that need a worker.
#[derive(Default)]
struct Due {
    renew: Vec<Arc<Hold>>,
    lost: Vec<Arc<Hold>>,
}

impl Due {
    /// Adds what is due `ahead` of its time, except a lease with a shorter ttl, which is not renewed
    /// that early. Returns when the next one is due, in nanoseconds.
    fn gather(&mut self, engine: &Engine, now: HostInstant, ahead: Duration) -> u64 {
        engine.queue.scan((now + ahead).as_nanos(), |hold| {
            if hold.state(now) == HoldState::Lost {
                if hold.must_notify_loss() {
                    self.lost.push(Arc::clone(hold));
                }
                return u64::MAX;
            }
            if hold.take_due_renewal(now, ahead.min(hold.policy.ttl() / 12)) {
                self.renew.push(Arc::clone(hold));
            }
            hold.due()
        })
    }
}
