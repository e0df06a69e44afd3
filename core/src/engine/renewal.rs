//! Renewal: what is due, batches of it, the answers, and telling about losses.
//!
//! One thread watches the deadlines of all leases and never does I/O; workers renew the leases and
//! call the user back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};
use crate::provider::{ErasedLease, RenewRequest, Renewal};
use crate::sync::run_caught;
use crate::timer::{MAX_SLEEP, Tick};
use crate::workers::MAX_QUEUED;

use super::hold::{Hold, HoldState};
use super::state::{Engine, Job};

/// Starts the thread that watches deadlines. It has the engine only while it polls: the engine ends
/// with its last keeper and guard, and the thread with the engine.
pub(super) fn start(engine: &Arc<Engine>) -> Result<(), Error> {
    let (weak, visits) = (Arc::downgrade(engine), Arc::clone(&engine.visits));
    engine.timer.start("lockkeeper-watch", move |tick| {
        visits.visit(&weak, |engine| {
            if tick.jumped {
                engine.queue.unpark_all();
            }
            poll(engine, tick)
        })
    })
}

/// Hands what is due to the workers. Returns when to poll again.
fn poll(engine: &Arc<Engine>, tick: Tick) -> HostInstant {
    let now = tick.now;
    let mut due = Due::default();
    let mut next = due.gather(engine, now, Duration::ZERO);
    // A lease that is due soon goes along with those that are due: many leases, few round trips. It
    // is no reason for a poll's batch of its own.
    if !due.renew.is_empty() {
        next = due.gather(engine, now, engine.settings.lease.ttl() / 12);
    }
    for hold in &due.lost {
        engine.queue.detach(&hold.name, hold);
    }
    let batches = due.renew.chunks(engine.capabilities.renew_batch().max(1));
    let renewals = batches.map(|batch| Job::Renew(batch.to_vec()));
    let jobs = renewals
        .chain(due.lost.into_iter().map(Job::NotifyLost))
        .collect();
    let (weak, visits) = (Arc::downgrade(engine), Arc::clone(&engine.visits));
    let run = move |job| {
        let done = visits.visit(&weak, |engine| match job {
            Job::Renew(batch) => renew(engine, &batch),
            Job::NotifyLost(hold) => notify_lost(engine, &hold),
        });
        done.is_some()
    };
    let mut next = HostInstant::from_nanos(next);
    if engine.workers.push(jobs, run) {
        next = next.min(now + MAX_QUEUED);
    }
    // Threads of the wait queue rely on the poll to notice a clock that jumped.
    if engine.waiting.load(Ordering::SeqCst) > 0 {
        next = next.min(now + MAX_SLEEP);
    }
    next
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
            let at = hold.renew_at.load(Ordering::Acquire);
            let by = now + ahead.min(hold.policy.ttl() / 12);
            if at <= by.as_nanos() {
                hold.renew_at.store(u64::MAX, Ordering::Release);
                self.renew.push(Arc::clone(hold));
            }
            hold.due()
        })
    }
}

/// Reports a loss to the observer and runs the callbacks of its guard.
pub(crate) fn notify_lost(engine: &Engine, hold: &Arc<Hold>) {
    let handovers = hold.handovers();
    if let Ok(token) = hold.token(handovers) {
        engine.notifier.tell(|o| o.lost(&hold.name, token));
    }
    for (of, callback) in hold.take_callbacks() {
        run_caught(|| {
            if of == handovers {
                callback();
            }
        });
    }
}

/// Renews the leases of a batch; each gets its answer.
pub(crate) fn renew(engine: &Engine, holds: &[Arc<Hold>]) {
    let clock = &*engine.clock;
    let mut taken: Vec<(&Arc<Hold>, ErasedLease, HostInstant)> = holds
        .iter()
        .filter_map(|hold| {
            let (lease, deadline) = hold.take_to_renew(clock)?;
            Some((hold, lease, deadline))
        })
        .collect();
    let asked_at = clock.now();
    let mut batch: Vec<RenewRequest<'_, ErasedLease>> = taken
        .iter_mut()
        .map(|(hold, lease, deadline)| RenewRequest {
            lease,
            ttl: hold.policy.ttl(),
            deadline: *deadline,
            answer: None,
        })
        .collect();
    // A backend's panic must not end the renewal of everybody's leases.
    let whole = catch_unwind(AssertUnwindSafe(|| engine.provider.renew_batch(&mut batch)));
    let answers: Vec<_> = batch
        .into_iter()
        .map(|renew| {
            renew
                .answer
                .unwrap_or_else(|| Err(no_answer(whole.is_err())))
        })
        .collect();
    for ((hold, lease, _), answer) in taken.into_iter().zip(answers) {
        apply_renewal(engine, hold, lease, &answer, asked_at);
    }
}

fn no_answer(panicked: bool) -> Error {
    let what = if panicked {
        "the backend panicked while it renewed"
    } else {
        "the backend gave no answer to a renewal"
    };
    Error::new(ErrorKind::Unknown, what)
}

/// Brings a lease back from its renewal and tells whom it concerns.
pub(crate) fn apply_renewal(
    engine: &Engine,
    hold: &Arc<Hold>,
    lease: ErasedLease,
    answer: &Result<Renewal, Error>,
    asked_at: HostInstant,
) {
    if let Some(mut lease) = hold.bring_back(lease, answer, asked_at, &*engine.clock) {
        // Its guard was dropped while the renewal had it, or is lost already.
        let deadline = engine.clock.now() + hold.policy.ttl();
        let _ = catch_unwind(AssertUnwindSafe(|| {
            engine.provider.release(&mut lease, deadline)
        }));
    }
    if engine.notifier.is_some()
        && let Ok(token) = hold.token(hold.handovers())
    {
        match answer {
            Ok(Renewal::Renewed) => engine.notifier.tell(|o| o.renewed(&hold.name, token)),
            Ok(Renewal::Lost) => {}
            Err(error) => engine
                .notifier
                .tell(|o| o.renewal_unknown(&hold.name, token, error)),
        }
    }
    let due = match hold.state(engine.clock.now()) {
        HoldState::Held => hold.due(),
        HoldState::Lost => 0,
        HoldState::Over => return,
    };
    engine.queue.touch(&hold.name, due);
    engine.timer.note(HostInstant::from_nanos(due));
}
