//! Operations of many callers in one transaction.
//!
//! A server with a smaller `--max-txn-ops` refuses a batch and does nothing of it. Later batches are half as large.

use std::sync::atomic::Ordering;

use lockkeeper_core::{
    Error, ErrorKind, Grant, HostInstant, Mode, Operation, Released, RenewRequest, Renewal,
};
use lockkeeper_remote::{Failure, senseless};
use serde_json::Value;

use crate::acquire::{acquire, try_acquire};
use crate::attempt::{Attempt, Bound};
use crate::exchange::exchange;
use crate::failure::Refusal;
use crate::keys::KeyRange;
use crate::leases::Lease;
use crate::provider::EtcdLease;
use crate::store::{Store, delete_if};
use crate::wire::{KeyValue, Txn, TxnReply, get, put, revision, unchanged};

/// How many operations travel together at the most. etcd takes 128 in a transaction by default, and counts those of the largest
/// transaction inside of it as well. It also takes no more comparisons than operations.
pub(crate) const BATCH: usize = 120;

/// What an operation of a batch is about, beside the operation.
enum Part<'a> {
    Attempt(Attempt<'a>, Bound),
    /// The lease to be bound to, and when the operation was asked for.
    Renewal(Lease, HostInstant),
    Release,
    /// It is answered already, or on its own.
    None,
}

/// Carries out all operations, and answers each.
pub(crate) fn batch(store: &Store, operations: &mut [Operation<'_, EtcdLease>]) {
    let Some(until) = operations.iter().map(Operation::deadline).max() else {
        return;
    };
    let most = store.most.load(Ordering::Relaxed);
    if operations.len() > most {
        let parts = operations.chunks_mut(most);
        return parts.for_each(|part| batch(store, part));
    }
    // Once more if a lease of this process turned out to have ended: then nothing was done. A renewal is
    // repeated as well if its reply is missing, or if an earlier renewal has moved the key. That does no harm.
    for is_last in [false, true] {
        let mut binder = Binder {
            store,
            asked_at: store.clock.now(),
            until,
            failed: None,
        };
        let parts = operations.iter_mut().map(|it| binder.prepare(it));
        let parts: Vec<_> = parts.collect();
        let asked = operations.iter().zip(&parts);
        let then: Vec<_> = asked.filter_map(|(it, part)| request(it, part)).collect();
        if then.is_empty() {
            return;
        }
        let reply = exchange(store, then, until);
        if Refusal::TooManyOperations.is_in(&reply) && operations.len() > 1 {
            store.most.store(operations.len() / 2, Ordering::Relaxed);
            return batch(store, operations);
        }
        let is_lease_gone = Refusal::LeaseGone.is_in(&reply);
        if is_lease_gone || matches!(reply, Err(Failure::Unanswered(_))) {
            parts.iter().for_each(retire);
            if !is_last && is_lease_gone {
                continue;
            }
        }
        let mut at = 0;
        for (operation, part) in operations.iter_mut().zip(parts) {
            if matches!(part, Part::None) {
                continue;
            }
            match &reply {
                Ok(reply) => {
                    read(store, operation, part, (reply, at), until);
                    if is_last && !operation.is_answered() {
                        operation.fail(moved());
                    }
                }
                Err(Failure::Unanswered(_))
                    if !is_last && matches!(operation, Operation::Renew(_)) => {}
                Err(failure) => operation.fail(failure.error().clone()),
            }
            at += 1;
        }
    }
}

/// Makes sure of the leases that the operations of a batch need.
struct Binder<'s> {
    store: &'s Store,
    /// One keep-alive serves all renewals with the same ttl.
    asked_at: HostInstant,
    until: HostInstant,
    /// The first failure, which is that of all further operations: they are not to wait for another one.
    failed: Option<Failure>,
}

impl<'s> Binder<'s> {
    /// Makes an operation ready for the transaction. One that cannot be part of it is carried out here.
    fn prepare<'o: 's>(&mut self, operation: &mut Operation<'o, EtcdLease>) -> Part<'s> {
        let (store, until) = (self.store, self.until);
        if operation.is_answered() {
            return Part::None;
        }
        let part = match operation {
            Operation::Release(_) => return Part::Release,
            _ if self.failed.is_some() => None,
            Operation::Acquire(it) if matches!(it.request.mode(), Mode::Permit { .. }) => {
                let answer = try_acquire(store, it.request);
                // A permit alone may be refused.
                if let Err(failure) = &answer
                    && !matches!(failure, Failure::Refused(_))
                {
                    self.failed = Some(failure.clone());
                }
                it.answer = Some(answer.map_err(Failure::into_error));
                return Part::None;
            }
            Operation::Acquire(it) => {
                let attempt = Attempt::new(store, it.request);
                let bound = self.noted(attempt.bind(false, until));
                bound.map(|bound| Part::Attempt(attempt, bound))
            }
            Operation::Renew(it) => {
                // The rest of a fixed lease is verified on the lease that it has.
                let bound = store.leases.ttl_of(it.lease.lease);
                let ttl = bound.map_or(it.ttl, |bound| bound.max(it.ttl));
                let lease = store.leases.current(store, ttl, self.asked_at, until, None);
                let lease = self.noted(lease);
                lease.map(|lease| Part::Renewal(lease, self.asked_at))
            }
        };
        part.unwrap_or_else(|| {
            let failed = self.failed.as_ref().map(|failure| failure.error().clone());
            operation.fail(failed.unwrap_or_else(senseless));
            Part::None
        })
    }

    fn noted<T>(&mut self, result: Result<T, Failure>) -> Option<T> {
        result.map_err(|failure| self.failed = Some(failure)).ok()
    }
}

/// Returns the request for an operation.
fn request(operation: &Operation<'_, EtcdLease>, part: &Part<'_>) -> Option<Value> {
    Some(match (operation, part) {
        (Operation::Acquire(_), Part::Attempt(attempt, bound)) => attempt.first(bound).nested(),
        (Operation::Renew(it), Part::Renewal(lease, _)) if it.lease.lease == lease.id => {
            get(&KeyRange::one(it.lease.key.as_str()))
        }
        (Operation::Renew(it), Part::Renewal(lease, _)) => Txn {
            // A late move must not bind the key to a lease that this process has retired.
            compare: vec![unchanged(&it.lease.key, it.lease.seen)],
            then: vec![put(&it.lease.key, &it.lease.value, lease.id)],
            // An earlier move whose reply is missing may have written it.
            otherwise: vec![get(&KeyRange::one(it.lease.key.as_str()))],
        }
        .nested(),
        (Operation::Release(it), Part::Release) => {
            delete_if(&it.lease.key, it.lease.seen.created).nested()
        }
        _ => return None,
    })
}

fn retire(part: &Part<'_>) {
    if let Part::Attempt(attempt, bound) = part {
        attempt.retire(bound);
    }
}

/// Answers an operation by the reply to the request number `at` of the transaction.
fn read(
    store: &Store,
    operation: &mut Operation<'_, EtcdLease>,
    part: Part<'_>,
    (reply, at): (&Value, usize),
    until: HostInstant,
) {
    let nested = TxnReply(reply).nested(at);
    let succeeded = nested.is_some_and(TxnReply::succeeded);
    match (operation, part) {
        (Operation::Acquire(it), Part::Attempt(attempt, bound)) => {
            let answer = nested.ok_or_else(senseless);
            let answer = answer.and_then(|nested| {
                let read = attempt.read(reply, nested, None, &bound, until);
                let read = read.map_err(Failure::into_error)?;
                settle(&attempt, read)
            });
            it.answer = Some(answer);
        }
        (Operation::Renew(it), Part::Renewal(lease, asked_at)) => {
            let of_move = nested.and_then(|nested| nested.keys(0));
            let found = of_move.or_else(|| TxnReply(reply).keys(at));
            let found = found.unwrap_or_default().into_iter().next();
            let moved = succeeded.then(|| revision(reply));
            it.answer = renewed(store, it, lease, asked_at, moved, found).map(Ok);
        }
        (Operation::Release(it), Part::Release) => {
            store.expiry.remove(&it.lease.key, it.lease.seen.created);
            it.answer = Some(Ok(match succeeded {
                true => Released::Done,
                false => Released::AlreadyLost,
            }));
        }
        _ => {}
    }
}

/// Answers an attempt. If the name was not free, an earlier attempt of the same request may have taken it. If it
/// was free, the base of the epochs was raised.
fn settle(
    attempt: &Attempt<'_>,
    read: Result<Grant<EtcdLease>, Vec<KeyValue>>,
) -> Result<Option<Grant<EtcdLease>>, Error> {
    match read {
        Ok(grant) => Ok(Some(grant)),
        Err(all) if attempt.is_free(&all) || attempt.own(&all).is_some() => {
            acquire(attempt.store, attempt.request)
        }
        Err(_) => {
            attempt.request.contended();
            Ok(None)
        }
    }
}

/// Returns what came of a renewal: its key was moved at a revision, or found. `None` if the key is bound to another
/// lease: an earlier renewal has moved it, and it is to be moved again.
fn renewed(
    store: &Store,
    renewal: &mut RenewRequest<'_, EtcdLease>,
    lease: Lease,
    asked_at: HostInstant,
    moved: Option<i64>,
    found: Option<KeyValue>,
) -> Option<Renewal> {
    let held = &mut *renewal.lease;
    match (moved, found) {
        (Some(modified), _) => {
            held.seen.modified = modified;
            held.lease = lease.id;
        }
        (None, Some(found)) if found.created == held.seen.created => {
            held.seen = found.seen();
            held.lease = found.lease;
        }
        _ => {
            store.expiry.remove(&held.key, held.seen.created);
            return Some(Renewal::Lost);
        }
    }
    if held.lease != lease.id {
        return None;
    }
    let ends = asked_at + renewal.ttl;
    store
        .expiry
        .enter(&held.key, held.seen.created, lease.id, ends);
    Some(Renewal::Renewed)
}

fn moved() -> Error {
    let text = "an earlier renewal of the lock was carried out late; renew again";
    Error::new(ErrorKind::Unavailable, text)
}
