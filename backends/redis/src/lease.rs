//! A grant: renewing it, one or many, and giving it back.

use std::time::Duration;

use lockkeeper_core::{Error, HostInstant, Released, RenewRequest, Renewal};
use lockkeeper_remote::{Failure, LAST_ATTEMPT as ATTEMPT, senseless};
use redis::Value;

use crate::acquire::millis;
use crate::keys::Keys;
use crate::scripts;
use crate::store::{
    Patience, Store, accepted, from_primary, is_no_script, is_renewed, packed, told,
};

/// A grant of a [`RedisProvider`](crate::RedisProvider).
#[derive(Debug)]
pub struct RedisLease {
    pub(crate) keys: Keys,
    pub(crate) owner: String,
}

/// A server that is gone is not waited for as long as the lease would last: who renews asks
/// again, and who releases has other things to do.
fn patience(store: &Store, deadline: HostInstant) -> Patience<'static> {
    let now = store.clock.now();
    let longest = now + 2 * store.options.remote.response_timeout;
    Patience {
        until: deadline.min(longest).max(now + ATTEMPT),
        rides_out: false,
        is_cancelled: &|| false,
    }
}

fn renewed(answer: &Value) -> Result<Renewal, Error> {
    match answer {
        Value::Int(0) => Ok(Renewal::Lost),
        Value::Int(_) => Ok(Renewal::Renewed),
        _ => Err(senseless()),
    }
}

impl RedisLease {
    pub(crate) fn renew(
        &self,
        store: &Store,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        let patience = patience(store, deadline);
        let ttl_ms = millis(ttl).to_string();
        let args = [self.owner.as_str(), ttl_ms.as_str()];
        let answer = store.run(&scripts::RENEW, &[&self.keys.lock], &args, &patience);
        let answer = answer.map_err(Failure::into_error)?;
        renewed(&answer.value)
    }

    pub(crate) fn release(&self, store: &Store, deadline: HostInstant) -> Result<Released, Error> {
        let patience = patience(store, deadline);
        let keys = [self.keys.lock.as_str(), self.keys.line.as_str()];
        let answer = store.attempt_once(&scripts::RELEASE, &keys, &[&self.owner], &patience);
        let is_released = answer.map_err(Failure::into_error)?.released()?;
        Ok(if is_released {
            Released::Done
        } else {
            Released::AlreadyLost
        })
    }
}

/// Renews all of them in one round trip.
pub(crate) fn renew_batch(store: &Store, batch: &mut [RenewRequest<'_, RedisLease>]) {
    let mut commands = Vec::new();
    // The first of them as `EVAL`, which loads the script.
    let mut load = Vec::new();
    let mut asked = Vec::new();
    let mut deadline = HostInstant::NEVER;
    for renew in batch.iter_mut() {
        let lease = &*renew.lease;
        let ttl = millis(renew.ttl).to_string();
        let args = [lease.owner.as_str(), ttl.as_str()];
        let keys = [lease.keys.lock.as_str()];
        commands.extend_from_slice(&packed("EVALSHA", &scripts::RENEW.sha, &keys, &args));
        if load.is_empty() {
            load = packed("EVAL", &scripts::RENEW.code, &keys, &args);
        }
        deadline = deadline.min(renew.deadline);
        asked.push(renew);
    }
    let count = asked.len();
    if count == 0 {
        return;
    }
    let left = deadline.saturating_since(store.clock.now()).max(ATTEMPT);
    let renew = |left| {
        store.with_connection(left, |connection, limit| {
            let began = store.clock.now();
            let mut answers = connection.exchange(&commands, count, limit)?;
            if answers.iter().any(is_no_script) {
                connection.ask(&load, limit).and_then(told)?;
                answers = connection.exchange(&commands, count, limit)?;
            }
            let is_acknowledged =
                !answers.iter().any(is_renewed) || store.acknowledged(connection, began, limit)?;
            let answers = answers.into_iter().map(from_primary);
            Ok((answers.collect::<Result<Vec<_>, _>>()?, is_acknowledged))
        })
    };
    let mut answers = renew(left);
    if let Err(Failure::Unanswered(_)) = answers {
        // Leases that were renewed twice are none the worse.
        let left = deadline.saturating_since(store.clock.now());
        if !left.is_zero() {
            answers = renew(left);
        }
    }
    match answers {
        Ok((answers, is_acknowledged)) => {
            for (renew, answer) in asked.into_iter().zip(answers) {
                renew.answer = Some(if !is_acknowledged && is_renewed(&answer) {
                    Err(store.few_replicas("renewal"))
                } else {
                    let accepted = accepted(answer).map_err(Failure::into_error);
                    accepted.and_then(|value| renewed(&value))
                });
            }
        }
        Err(failure) => {
            let error = failure.into_error();
            for renew in asked {
                renew.answer = Some(Err(error.clone()));
            }
        }
    }
}
