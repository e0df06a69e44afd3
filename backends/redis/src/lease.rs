//! A grant, and the renewal of many grants in one round trip.

use std::time::Duration;

use lockkeeper_core::{HostInstant, RenewRequest, Renewal};
use lockkeeper_remote::Failure;
use redis::Value;

use crate::failure::{accepted, accepted_by_primary, from_primary, parse};
use crate::keys::Keys;
use crate::scripts::{RENEW, is_no_script};
use crate::store::Store;

/// A grant of a [`RedisProvider`](crate::RedisProvider).
#[derive(Debug)]
pub struct RedisLease {
    pub(crate) keys: Keys,
    pub(crate) owner: String,
}

/// Renews all of them in one round trip.
pub(crate) fn renew_batch(store: &Store, batch: &mut [RenewRequest<'_, RedisLease>]) {
    let mut commands = Vec::new();
    // The first renewal, with the script.
    let mut load = Vec::new();
    let mut deadline = HostInstant::NEVER;
    for renew in &*batch {
        let keys = [renew.lease.keys.lock.as_str()];
        let ttl = millis(renew.ttl).to_string();
        let args = [renew.lease.owner.as_str(), ttl.as_str()];
        commands.extend(RENEW.by_sha(&keys, &args));
        if load.is_empty() {
            load = RENEW.by_code(&keys, &args);
        }
        deadline = deadline.min(renew.deadline);
    }
    let count = batch.len();
    if count == 0 {
        return;
    }
    let renew_all = || {
        let until = store.at_least_one_attempt(deadline);
        store.with_connection(until, |connection, limit| {
            let began = store.clock.now();
            let mut answers = connection.exchange(&commands, count, limit)?;
            if answers.iter().any(is_no_script) {
                connection.ask(&load, limit).and_then(accepted_by_primary)?;
                answers = connection.exchange(&commands, count, limit)?;
            }
            let answers: Result<Vec<_>, _> = answers.into_iter().map(from_primary).collect();
            let answers = answers?;
            let is_renewed = answers
                .iter()
                .any(|answer| matches!(answer, Value::Int(1..)));
            let is_acknowledged = !is_renewed || store.acknowledged(connection, began, limit)?;
            Ok((answers, is_acknowledged))
        })
    };
    let answers = match renew_all() {
        // A lease that is renewed twice is none the worse.
        Err(Failure::Unanswered(_)) if store.clock.now() < deadline => renew_all(),
        answers => answers,
    };
    let (answers, is_acknowledged) = match answers {
        Ok(answers) => answers,
        Err(failure) => {
            for renew in batch {
                renew.answer = Some(Err(failure.error().clone()));
            }
            return;
        }
    };
    for (renew, answer) in batch.iter_mut().zip(answers) {
        renew.answer = Some(match accepted(answer).and_then(parse::<i64>) {
            Ok(0) => Ok(Renewal::Lost),
            Ok(_) if is_acknowledged => Ok(Renewal::Renewed),
            Ok(_) => Err(store.few_replicas("renewal")),
            Err(failure) => Err(failure.into_error()),
        });
    }
}

/// Returns a ttl for the server, which counts in signed numbers from 1970. Rounded up, so that no lease is
/// shorter than requested.
pub(crate) fn millis(span: Duration) -> u64 {
    let millis = span.as_nanos().div_ceil(1_000_000);
    u64::try_from(millis).unwrap_or(u64::MAX).min(1 << 52)
}
