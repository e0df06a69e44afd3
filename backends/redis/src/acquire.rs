//! Acquiring a name, and waiting for it among other processes.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant};
use lockkeeper_remote::Failure;

use crate::attempt::{Acquisition, Answer, Granted};
use crate::lease::RedisLease;
use crate::listener::Waiter;
use crate::store::Store;

/// The longest time until the next attempt of a waiter that is not woken.
const ATTEMPT_EVERY: Duration = Duration::from_secs(1);
/// The longest time until the next attempt of the second waiter that is not woken: the first one may be stopped.
const SECOND_ATTEMPT_EVERY: Duration = Duration::from_millis(100);

pub(crate) fn acquire(
    store: &Store,
    request: &AcquireRequest<'_>,
) -> Result<Option<Grant<RedisLease>>, Error> {
    let acquisition = Acquisition::new(store, request);
    let granted = match request.deadline() {
        None => acquisition.single_attempt(),
        Some(deadline) => acquisition.wait(deadline),
    };
    let granted = granted.map_err(Failure::into_error)?;
    Ok(granted.map(|granted| acquisition.into_grant(&granted)))
}

impl Acquisition<'_> {
    fn single_attempt(&self) -> Result<Option<Granted>, Failure> {
        if let Answer::Granted(granted) = self.attempt(&[])? {
            return Ok(Some(granted));
        }
        self.request.contended();
        Ok(None)
    }

    fn wait(&self, deadline: HostInstant) -> Result<Option<Granted>, Failure> {
        let listener = &self.store.listener;
        let mut entry = QueueEntry {
            acquisition: self,
            waiter: listener.enter(self.request.mode()),
            is_queued: false,
        };
        let unparker = entry.waiter.parker.unparker().clone();
        let cancel = self.request.cancel();
        let _wake = cancel.map(|cancel| cancel.on_cancel(move || unparker.unpark()));
        // A waiter queues only when messages reach it.
        let mut joins_queue = false;
        let mut was_busy = false;
        loop {
            joins_queue |= listener.is_listening();
            if self.request.is_cancelled() {
                return Ok(None);
            }
            let now = self.request.now();
            let is_last = was_busy && now >= deadline;
            let state = match (is_last, entry.is_queued) {
                (true, _) => "last",
                (false, true) => "queued",
                (false, false) => "new",
            };
            entry.is_queued |= joins_queue;
            let in_queue: &[&str] = if joins_queue {
                &[&entry.waiter.name, state]
            } else {
                &[]
            };
            let attempt = self.repeat_attempt(in_queue, was_busy);
            let (ends, before) = match attempt {
                Ok(Answer::Granted(granted)) => {
                    // A request without a reply may have queued after a later one was granted.
                    entry.is_queued &= self.is_repeated();
                    return Ok(Some(granted));
                }
                Ok(Answer::Busy { ends, before }) => (ends, before),
                Err(failure) => {
                    // A server that does not reply gets no request to remove the waiter, which expires
                    // by itself.
                    entry.is_queued &= matches!(failure, Failure::Refused(_));
                    return Err(failure);
                }
            };
            self.request.contended();
            was_busy = true;
            if is_last {
                entry.is_queued = false;
                return Ok(None);
            }
            if !joins_queue && !listener.is_about_to_listen() {
                joins_queue = true;
                continue;
            }
            let now = self.request.now();
            let until = now + ends.min(next_attempt(before));
            let pause = until.min(deadline).saturating_since(now);
            entry.waiter.parker.park_timeout(pause);
        }
    }

    /// Makes an attempt, and repeats it where the waiter may be in the queue, as long as the engine says. If it
    /// returned the failure, the waiter would lose its position.
    fn repeat_attempt(&self, in_queue: &[&str], was_busy: bool) -> Result<Answer, Failure> {
        loop {
            let failure = match self.attempt(in_queue) {
                Err(failure) => failure,
                answer => return answer,
            };
            let may_be_queued = was_busy || self.may_be_granted.get();
            // On another node the waiter has no position yet.
            let end = self.request.end();
            let is_over = !may_be_queued || self.store.has_moved(&self.lease.key, end);
            if is_over || !self.request.retry(failure.error()) {
                return Err(failure);
            }
        }
    }
}

/// An entry in the wait queue of a name, removed on every way out.
struct QueueEntry<'a> {
    acquisition: &'a Acquisition<'a>,
    waiter: Waiter,
    is_queued: bool,
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        if self.is_queued {
            let Acquisition { store, lease, .. } = self.acquisition;
            store.leave(&lease.key, &self.waiter.name);
        }
    }
}

/// Returns the time until the next attempt of a waiter that is not woken, different for each.
fn next_attempt(before: i64) -> Duration {
    let longest = match before {
        1 => SECOND_ATTEMPT_EVERY,
        _ => ATTEMPT_EVERY,
    };
    longest.mul_f64(0.8 + fastrand::f64() / 5.0)
}
