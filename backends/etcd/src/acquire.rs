//! Acquires a name: one attempt, or a wait in the queue of its keys.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant};
use lockkeeper_remote::{Failure, LAST_ATTEMPT};

use crate::attempt::{Answer, Attempt, Queued};
use crate::provider::EtcdLease;
use crate::store::Store;

/// A waiter looks this often for its turn, at the most, where no notification came.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Acquires a name as [`Backend::acquire`](lockkeeper_core::Backend::acquire) says.
pub(crate) fn acquire(
    store: &Store,
    request: &AcquireRequest<'_>,
) -> Result<Option<Grant<EtcdLease>>, Error> {
    try_acquire(store, request).map_err(Failure::into_error)
}

/// Acquires a name as [`acquire`] does. The failure says what is left of the last request.
pub(crate) fn try_acquire(
    store: &Store,
    request: &AcquireRequest<'_>,
) -> Result<Option<Grant<EtcdLease>>, Failure> {
    let mut attempt = Attempt::new(store, request);
    match request.deadline() {
        None => attempt_once(&mut attempt),
        Some(deadline) => wait(&mut attempt, deadline),
    }
}

fn attempt_once(attempt: &mut Attempt<'_>) -> Result<Option<Grant<EtcdLease>>, Failure> {
    let request = attempt.request;
    let until = request
        .end()
        .min(request.now() + attempt.store.client.attempt());
    match attempt.ask(None, until)? {
        Answer::Granted(grant) => Ok(Some(grant)),
        Answer::Queued(_) | Answer::Busy => {
            request.contended();
            Ok(None)
        }
    }
}

fn wait(
    attempt: &mut Attempt<'_>,
    deadline: HostInstant,
) -> Result<Option<Grant<EtcdLease>>, Failure> {
    let request = attempt.request;
    let until = request.end().min(deadline + LAST_ATTEMPT);
    let mut queued: Option<Queued> = None;
    let mut is_woken = true;
    // Busy is the answer only if the store said so last.
    let mut has_failed = false;
    loop {
        if let Some(queued) = &queued
            && (!has_failed || request.is_cancelled())
            && (request.is_cancelled() || request.now() >= deadline)
        {
            leave(attempt, queued.seen.created, until);
            return Ok(None);
        }
        let seen = queued.as_ref().map(|it| it.seen);
        let answer = match is_woken {
            true => attempt.ask(seen, until).map(Some),
            false => attempt.look(until),
        };
        has_failed = answer.is_err();
        match answer {
            Ok(Some(Answer::Granted(grant))) => return Ok(Some(grant)),
            Ok(Some(Answer::Queued(position))) => {
                request.contended();
                is_woken = park(attempt, &position, deadline);
                queued = Some(position);
            }
            Ok(Some(Answer::Busy) | None) => is_woken = true,
            Err(failure) => {
                // Its key may be in the queue. If it asks again at once, it keeps its position.
                let has_entered = queued.is_some() || attempt.has_entered;
                let may_be_queued = has_entered || matches!(failure, Failure::Unanswered(_));
                if may_be_queued && request.retry(failure.error()) {
                    is_woken = true;
                    continue;
                }
                // A key that stays behind ends with its lease.
                if has_entered {
                    retire_waiting(attempt);
                }
                return Err(failure);
            }
        }
    }
}

/// Waits until the keys ahead are deleted, or for the time after which to look. Returns whether they are.
fn park(attempt: &Attempt<'_>, position: &Queued, deadline: HostInstant) -> bool {
    let request = attempt.request;
    let listener = &attempt.store.listener;
    let waiter = listener.enter(attempt.keys.all(), position);
    let unparker = waiter.unparker();
    let cancel = request.cancel();
    let _wake = cancel.map(|cancel| cancel.on_cancel(move || unparker.unpark()));
    let look = request.now() + LOOK_EVERY.mul_f64(0.8 + fastrand::f64() / 5.0);
    while !waiter.is_due() && !request.is_cancelled() {
        let left = look.min(deadline).saturating_since(request.now());
        if left.is_zero() {
            return false;
        }
        waiter.park(left);
    }
    true
}

/// Gives the position up. A waiter behind learns of it as of a release. The caller of an acquisition waits for this.
fn leave(attempt: &Attempt<'_>, created: i64, until: HostInstant) {
    let until = until.min(attempt.request.now() + LAST_ATTEMPT);
    if attempt.store.delete(&attempt.key, created, until).is_err() {
        retire_waiting(attempt);
    }
}

/// Retires the lease of this process' waiting keys, so that they end soon unless their waiters move them to another.
fn retire_waiting(attempt: &Attempt<'_>) {
    let store = attempt.store;
    store.leases.retire_for(store.min_ttl());
}
