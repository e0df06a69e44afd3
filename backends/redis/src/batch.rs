//! Operations of many callers in one round trip.

use lockkeeper_core::{Error, Grant, HostInstant, Operation, Released, Renewal};
use lockkeeper_remote::{Failure, senseless};
use redis::Value;

use crate::attempt::{Acquisition, Answer};
use crate::calls::Call;
use crate::failure::{accepted, parse};
use crate::lease::{RedisLease, millis};
use crate::store::Store;

/// Carries out all operations, and answers each.
pub(crate) fn batch(store: &Store, operations: &mut [Operation<'_, RedisLease>]) {
    let Some(latest) = operations.iter().map(Operation::deadline).max() else {
        return;
    };
    let attempts = operations.iter().filter_map(|operation| match operation {
        Operation::Acquire(it) => Some(Acquisition::new(store, it.request)),
        Operation::Renew(_) | Operation::Release(_) => None,
    });
    let attempts: Vec<_> = attempts.collect();
    let replies = replies(store, operations, &attempts, latest);
    let mut attempts = attempts.into_iter();
    for (operation, (reply, asked_at)) in operations.iter_mut().zip(replies) {
        match operation {
            Operation::Acquire(it) => {
                let granted = attempts
                    .next()
                    .map(|attempt| granted(attempt, reply, asked_at));
                it.answer = Some(granted.unwrap_or_else(|| Err(senseless())));
            }
            Operation::Renew(it) => {
                it.answer = Some(is_held(reply).map(renewal));
            }
            Operation::Release(it) => it.answer = Some(is_held(reply).map(released)),
        }
    }
}

/// Returns a reply for each operation, and when the request for it was sent.
fn replies(
    store: &Store,
    operations: &[Operation<'_, RedisLease>],
    attempts: &[Acquisition<'_>],
    latest: HostInstant,
) -> Vec<(Result<Value, Failure>, HostInstant)> {
    let mut attempts = attempts.iter();
    let calls = operations.iter().filter_map(|operation| match operation {
        Operation::Acquire(it) => {
            let attempt = attempts.next();
            attempt.map(|attempt| Call::attempt(attempt, &[], it.deadline))
        }
        Operation::Renew(it) => {
            let ttl = millis(it.ttl).to_string();
            Some(Call::renew(it.lease, ttl, it.deadline))
        }
        Operation::Release(it) => Some(Call::release(it.lease)),
    });
    let mut calls: Vec<_> = calls.collect();
    store.run_calls(&mut calls, latest, None);
    let now = store.clock.now();
    let repeated = calls.iter_mut().map(|call| call.repeat_renewal(now));
    if repeated.fold(false, |any, repeats| any | repeats) {
        store.run_calls(&mut calls, latest, None);
    }
    calls.into_iter().map(Call::into_reply).collect()
}

fn granted(
    attempt: Acquisition<'_>,
    reply: Result<Value, Failure>,
    asked_at: HostInstant,
) -> Result<Option<Grant<RedisLease>>, Error> {
    match attempt.read(reply, asked_at) {
        Ok(Answer::Granted(granted)) => Ok(Some(attempt.into_grant(&granted))),
        Ok(Answer::Busy { .. }) => Ok(None),
        Err(failure) => Err(failure.into_error()),
    }
}

/// Reads the reply of a renewal or a release.
fn is_held(reply: Result<Value, Failure>) -> Result<bool, Error> {
    let found = reply.and_then(accepted).and_then(parse::<i64>);
    found.map(|found| found > 0).map_err(Failure::into_error)
}

pub(crate) fn renewal(is_held: bool) -> Renewal {
    match is_held {
        true => Renewal::Renewed,
        false => Renewal::Lost,
    }
}

pub(crate) fn released(was_held: bool) -> Released {
    match was_held {
        true => Released::Done,
        false => Released::AlreadyLost,
    }
}
