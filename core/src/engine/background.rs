//! Background threads, and their jobs. They use the engine without keeping it alive, and its end waits for them.
//!
//! One thread watches the deadlines of all leases and never does I/O; workers renew the leases and
//! call the user's code.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::clock::HostInstant;
use crate::engine::timer::{MAX_SLEEP, Tick};
use crate::sync::lock;

use super::hold::{Hold, HoldState};
use super::threads::MAX_QUEUED;
use super::{Engine, Job, JobKind};

/// The background threads that use the engine now. Each has a sender of a channel that carries nothing, and the
/// receiver notices when the last sender is dropped. `None` after the end.
pub(super) struct BackgroundUse(Mutex<Option<(Sender<Infallible>, Receiver<Infallible>)>>);

impl BackgroundUse {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(channel())))
    }

    /// Calls `body` with the engine. `None` if the engine has ended, or is about to.
    pub(super) fn with<E, R>(
        &self,
        engine: &Weak<E>,
        body: impl FnOnce(&Arc<E>) -> R,
    ) -> Option<R> {
        let _use = self.begin()?;
        let engine = engine.upgrade()?;
        Some(body(&engine))
    }

    /// Makes [`end`](Self::end) wait until the result is dropped. Drop the engine before it, so that the
    /// engine is gone then. `None` after the end.
    pub(super) fn begin(&self) -> Option<Sender<Infallible>> {
        Some(lock(&self.0).as_ref()?.0.clone())
    }

    /// Lets no thread begin to use the engine, and waits for those that do, at most for `limit`. The store is closed
    /// when the last keeper or guard has gone, since nothing else may follow before the program ends. A store call
    /// that hangs ends by its own deadline.
    pub(super) fn end(&self, limit: Duration) {
        let Some((sender, receiver)) = lock(&self.0).take() else {
            return;
        };
        drop(sender);
        // An error either way: all senders are gone, or the time is over.
        let _ = receiver.recv_timeout(limit);
    }
}

/// The engine as a job uses it that is done also after the keeper's end.
pub(super) struct LastingUse {
    // Dropped first: see `BackgroundUse::begin`.
    pub(super) engine: Arc<Engine>,
    _in_use: Option<Sender<Infallible>>,
}

impl Engine {
    pub(super) fn lasting_use(self: &Arc<Self>) -> LastingUse {
        LastingUse {
            engine: Arc::clone(self),
            _in_use: self.background.begin(),
        }
    }

    /// Schedules `jobs` on the keeper's threads. Returns true if jobs are queued and more threads could join: call it again,
    /// after [`MAX_QUEUED`].
    pub(super) fn start_work(self: &Arc<Self>, jobs: Vec<(JobKind, Job)>) -> bool {
        let (weak, background) = (Arc::downgrade(self), Arc::clone(&self.background));
        let run = move |job| match job {
            Job::Send { used, part, number } => used.engine.send_batches(part, number),
            Job::Renew(part, batch) => {
                background.with(&weak, |engine| engine.renew_batch(part, &batch));
            }
            Job::NotifyLost(hold) => {
                background.with(&weak, |engine| engine.notify_lost(&hold));
            }
            Job::NotifyOutages => {
                background.with(&weak, |engine| engine.notify_outages());
            }
        };
        self.threads.push(jobs, false, &run)
    }

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
        if self.start_returns(Vec::new()) | self.start_work(jobs) {
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
                self.lost.push(Arc::clone(hold));
                return u64::MAX;
            }
            if hold.take_due_renewal(now, ahead.min(hold.policy.ttl() / 12)) {
                self.renew.push(Arc::clone(hold));
            }
            hold.due()
        })
    }
}
