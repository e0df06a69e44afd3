//! Ending a guard: its lease goes to the next waiter of the process, or back to the store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::clock::HostInstant;
use crate::error::{Error, ErrorKind};
use crate::provider::{ErasedLease, Released};
use crate::sync::run_caught;

use super::backoff::Limits;
use super::hold::acquired::Acquired;
use super::hold::{Callbacks, Hold};
use super::queue::Finished;
use super::retry::Retry;
use super::{ATTEMPT_LIMIT, Engine};

/// The longest that a release waits for the store.
const RELEASE_LIMIT: Duration = Duration::from_secs(5);

impl Engine {
    pub(crate) fn release(&self, acquired: &Acquired) -> Result<Released, Error> {
        let name = &acquired.hold.name;
        let result = self.finish(acquired);
        self.closing.notify();
        let result = result.map_err(|error| self.located(name, error));
        self.notifier
            .notify(|o| o.released(name, acquired.token(), &result));
        result
    }

    fn finish(&self, acquired: &Acquired) -> Result<Released, Error> {
        let hold = &acquired.hold;
        let now = self.clock.now();
        let finished = self.queue.finish(&hold.name, hold, |policy| {
            hold.hand_over(policy, now, &self.settings)
        });
        if finished == Finished::HandedOver {
            forget(acquired.end_handover());
            return Ok(Released::Done);
        }
        let ended = hold.end(now);
        let result = self.return_lease(hold, ended.lease, now);
        if finished == Finished::Release {
            self.queue.pass(&hold.name, None);
        }
        // The user's code comes last: it may lock this very name.
        forget(ended.callbacks);
        if ended.in_time {
            return result;
        }
        if hold.must_notify_loss() {
            self.notify_lost(hold);
        }
        result.map(|_| Released::AlreadyLost)
    }

    /// Releases a lease that a renewal may have.
    fn return_lease(
        &self,
        hold: &Hold,
        lease: Option<ErasedLease>,
        now: HostInstant,
    ) -> Result<Released, Error> {
        let deadline = now + RELEASE_LIMIT.min(hold.policy.ttl());
        let (mut lease, now) = match lease {
            Some(lease) => (lease, now),
            None => match hold.take_to_release(deadline, &*self.clock)? {
                Some(lease) => (lease, self.clock.now()),
                None => return Ok(Released::AlreadyLost),
            },
        };
        // A guard may be dropped while its thread panics; a second panic would abort.
        let released = catch_unwind(AssertUnwindSafe(|| {
            self.release_lease(&mut lease, deadline, now)
        }));
        released.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unknown,
                "the backend panicked while it released; the store frees the lock after its ttl",
            ))
        })
    }

    /// Releases a lease, and asks again while time is left if the reply was lost.
    fn release_lease(
        &self,
        lease: &mut ErasedLease,
        deadline: HostInstant,
        now: HostInstant,
    ) -> Result<Released, Error> {
        let limits = Limits {
            clock: &*self.clock,
            until: deadline.min(now + ATTEMPT_LIMIT),
            cancel: None,
        };
        let mut retry = Retry::new(limits, now);
        loop {
            match (self.provider.release(lease, deadline), retry.lost_reply()) {
                (Ok(Released::AlreadyLost), Some(lost)) => {
                    return Err(unknown_release(lost));
                }
                (Ok(released), _) => return Ok(released),
                (Err(error), _) => retry.after(error, false)?,
            }
        }
    }

    /// Releases a lease that no guard has, and returns the reason for that. If the release fails,
    /// the ttl frees the name.
    pub(super) fn discard<E>(&self, mut lease: ErasedLease, reason: E) -> E {
        let deadline = self.clock.now() + RELEASE_LIMIT;
        run_caught(|| drop(self.provider.release(&mut lease, deadline)));
        reason
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

/// Drops callbacks that are not called any more: what they captured is the user's code.
fn forget(callbacks: Callbacks) {
    for callback in callbacks {
        run_caught(|| drop(callback));
    }
}
