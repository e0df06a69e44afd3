//! Waits for a name in the queue of its keys.

use lockkeeper_core::{AcquireRequest, Error, Grant, HostInstant};
use lockkeeper_remote::{Failure, LAST_ATTEMPT};

use super::attempt::{Answer, Attempt, Queued, Stage};
use super::lease::EtcdLease;
use super::leases::LOOK_EVERY;
use crate::store::Store;

/// Acquires a name as [`Backend::acquire`](lockkeeper_core::Backend::acquire) says, with a wait until `deadline`.
pub(crate) fn wait(
    store: &Store,
    request: &AcquireRequest<'_>,
    deadline: HostInstant,
) -> Result<Option<Grant<EtcdLease>>, Error> {
    let mut attempt = Attempt::new(store, request);
    let until = request.end().min(deadline + LAST_ATTEMPT);
    let on_turn = |queued: &Queued| match request.mode().is_permit() {
        true => Stage::Look,
        false => Stage::OnTurn(queued.seen),
    };
    let mut queued: Option<Queued> = None;
    let mut stage = Stage::Free;
    // Busy is the answer only if the store said so last.
    let mut has_failed = false;
    loop {
        let is_over = request.is_cancelled() || (!has_failed && request.now() >= deadline);
        if let Some(queued) = &queued
            && is_over
        {
            leave(&attempt, queued.seen.created, until);
            return Ok(None);
        }
        let answer = attempt.ask(stage, until);
        has_failed = answer.is_err();
        match answer {
            Ok(Answer::Granted(grant)) => return Ok(Some(grant)),
            Ok(Answer::Queued(position)) => {
                request.contended();
                stage = match park(&attempt, &position, deadline) {
                    true => on_turn(&position),
                    false => Stage::Look,
                };
                queued = Some(position);
            }
            // A request that waits is one or the other.
            Ok(Answer::Busy) => stage = Stage::Look,
            Err(failure) => {
                // Its key may be in the queue. If it asks again at once, it keeps its position.
                let has_entered = queued.is_some() || attempt.has_entered;
                let may_be_queued = has_entered || matches!(failure, Failure::Unanswered(_));
                if may_be_queued && request.retry(failure.error()) {
                    stage = queued.as_ref().map_or(Stage::Free, on_turn);
                    continue;
                }
                // A key that stays behind ends with its lease.
                if has_entered {
                    store.leases.retire_waiting();
                }
                return Err(failure.into_error());
            }
        }
    }
}

/// Waits until the keys ahead are deleted, or for the time after which to look. Returns whether they are.
fn park(attempt: &Attempt<'_>, position: &Queued, deadline: HostInstant) -> bool {
    let request = attempt.request;
    let listener = &attempt.store.listener;
    let waiter = listener.enter(
        attempt.keys.all(),
        position.ahead.clone(),
        position.revision,
    );
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
    let store = attempt.store;
    if store.delete(&attempt.key, created, until).is_err() {
        store.leases.retire_waiting();
    }
}
