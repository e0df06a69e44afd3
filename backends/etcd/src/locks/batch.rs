//! Operations of many callers: attempts that do not wait, renewals and releases.

use std::collections::{HashMap, HashSet};

use lockkeeper_core::{
    CancelToken, Error, ErrorKind, Grant, HostInstant, Operation, Released, RenewRequest, Renewal,
    SentRelease,
};
use lockkeeper_remote::{Failure, senseless};

use super::attempt::{Answer, Attempt, Bound};
use super::lease::EtcdLease;
use super::leases::{Lease, seconds};
use super::tickets::resume;
use crate::connection::client::Sent;
use crate::connection::failure::Refusal;
use crate::store::Store;
use crate::wire::KeyValue;
use crate::wire::entry::Entry;
use crate::wire::txn::{Txn, TxnReply, put, unchanged};

/// The data that an operation needs for its transaction.
enum Part<'a> {
    Attempt(Attempt<'a>, Bound),
    /// The lease to which the key is bound, and the time of the request.
    Renewal(Lease, HostInstant),
    Release,
}

/// Carries out all operations, and answers each.
///
/// A server with a smaller `--max-txn-ops` refuses the whole batch. Later batches are half as large.
pub(crate) fn batch(store: &Store, operations: &mut [Operation<'_, EtcdLease>]) {
    let Some(until) = operations.iter().map(Operation::deadline).max() else {
        return;
    };
    if let Some((first, others)) = operations.split_first_mut()
        && let Some(owed) = first.take_sent().and_then(SentRelease::into_inner)
    {
        collect(store, first, others, owed, until);
        return batch(store, others);
    }
    let most = store.together.most();
    if operations.len() > most {
        let parts = operations.chunks_mut(most);
        return parts.for_each(|part| batch(store, part));
    }
    for operation in operations.iter_mut() {
        if let Operation::Acquire(it) = operation
            && it.answer.is_none()
            && it.request.is_resume()
        {
            it.answer = Some(resume(store, it.request, until).map_err(Failure::into_error));
        }
    }
    // A cancel closes the connection, so only a single operation can be cancelled.
    let cancel = match operations {
        [Operation::Acquire(single)] => single.request.cancel(),
        _ => None,
    };
    // If a lease of this process has ended, nothing was carried out, and the transactions are repeated once. A
    // renewal is also repeated if its reply is missing, or if an earlier renewal moved the key. That does no
    // harm. A full cluster refuses all of it if a key is to be written, and takes the rest then.
    let mut full = None;
    for is_last in [false, true] {
        let (asked, txns) = prepare(store, operations, &mut full, until, cancel);
        if txns.is_empty() {
            return;
        }
        let replies = store.together.carry_out(&store.client, txns, until, cancel);
        if Refusal::TooManyOperations.is_in(&replies) && asked.len() > 1 {
            store.together.halve(asked.len());
            return batch(store, operations);
        }
        let is_lease_gone = Refusal::LeaseGone.is_in(&replies);
        let is_full = Refusal::Full.is_in(&replies);
        match replies {
            Ok(replies) => {
                for ((operation, part), reply) in asked.into_iter().zip(replies) {
                    answer(store, operation, part, reply, until);
                }
            }
            Err(failure) => {
                let is_lost = matches!(failure, Failure::Unanswered(_));
                for (operation, part) in asked {
                    if let Part::Attempt(_, bound) = part
                        && (is_lost || is_lease_gone)
                    {
                        store.leases.retire(bound.lease.id);
                    }
                    let is_repeated = match operation {
                        Operation::Acquire(_) => false,
                        Operation::Renew(_) => is_lost || is_full,
                        Operation::Release(_) => is_full,
                    };
                    if is_last || !(is_lease_gone || is_repeated) {
                        operation.fail(failure.error().clone());
                    }
                }
                full = full.or(is_full.then_some(failure));
            }
        }
    }
    for operation in operations.iter_mut().filter(|it| !it.is_answered()) {
        let text = "an earlier renewal of the lock was carried out late; renew again";
        operation.fail(Error::new(ErrorKind::Unavailable, text));
    }
}

/// Reads the reply to a release that was sent. If it is lost, nothing is known of its name for others, either.
fn collect(
    store: &Store,
    release: &mut Operation<'_, EtcdLease>,
    others: &mut [Operation<'_, EtcdLease>],
    owed: Sent,
    until: HostInstant,
) {
    match store.client.collect(owed, until) {
        Ok(reply) => answer(store, release, Part::Release, reply, until),
        Err(Failure::Unanswered(error)) => {
            let freed = key_of(release).unwrap_or_default();
            for other in others {
                if let Operation::Acquire(it) = &*other
                    && let keys = store.name_keys(it.request.name(), it.request.mode())
                    && keys.all().contains(&freed)
                {
                    other.fail(error.clone());
                }
            }
            release.fail(error);
        }
        // It was not carried out.
        Err(_) => batch(store, std::slice::from_mut(release)),
    }
}

type Asked<'o, 'a, 's> = (&'o mut Operation<'a, EtcdLease>, Part<'s>);

/// Makes the transactions of all operations that have no answer.
fn prepare<'o, 's, 'a: 's>(
    store: &'s Store,
    operations: &'o mut [Operation<'a, EtcdLease>],
    full: &mut Option<Failure>,
    until: HostInstant,
    cancel: Option<&CancelToken>,
) -> (Vec<Asked<'o, 'a, 's>>, Vec<Txn>) {
    // One keep-alive serves all renewals with the same ttl.
    let asked_at = store.client.clock.now();
    // The first failure counts for all further operations, which must not wait for another one.
    let mut failed: Option<Failure> = None;
    let mut kept = HashMap::new();
    let leased: HashSet<_> = operations.iter().filter_map(key_of).collect();
    let (mut asked, mut txns) = (Vec::new(), Vec::new());
    for operation in operations.iter_mut().filter(|it| !it.is_answered()) {
        let prepared = match (&*operation, &failed) {
            (Operation::Release(it), _) => Ok((Part::Release, it.lease.delete())),
            (_, Some(failure)) => Err(failure.clone()),
            (Operation::Acquire(it), None) => {
                let mut attempt = Attempt::new(store, it.request);
                if leased.contains(&attempt.key) {
                    // One transaction must not write it twice.
                    attempt.key = attempt.keys.of(it.request);
                }
                let bound = match &*full {
                    Some(full) => Err(full.clone()),
                    None => attempt.bind(until, cancel),
                };
                bound.map(|bound| {
                    let txn = attempt.first(&bound);
                    (Part::Attempt(attempt, bound), txn)
                })
            }
            (Operation::Renew(it), None) => {
                // The rest of a fixed lease is verified on the lease that it has.
                let known = store.leases.ttl_of(it.lease.lease);
                let ttl = known.map_or(it.ttl, |known| known.max(it.ttl));
                let mut lease = match &*full {
                    Some(full) => Err(full.clone()),
                    None => store.leases.current(ttl, asked_at, until, None),
                };
                if Refusal::Full.is_in(&lease) {
                    *full = lease.as_ref().err().cloned();
                    if let Some(own) = keep_own(store, it, asked_at, &mut kept, until).transpose() {
                        lease = own;
                    }
                }
                lease.map(|lease| (Part::Renewal(lease, asked_at), renew(it.lease, lease)))
            }
        };
        match prepared {
            Ok((part, txn)) => {
                asked.push((operation, part));
                txns.push(txn);
            }
            Err(failure) => {
                operation.fail(failure.error().clone());
                let is_full = Refusal::of(failure.error()) == Some(Refusal::Full);
                // Renewals and releases go on while the cluster is full.
                let failed = if is_full { &mut *full } else { &mut failed };
                failed.get_or_insert(failure);
            }
        }
    }
    (asked, txns)
}

/// Keeps the lease alive to which a key is bound, since a full cluster moves the key to no other one. `None` if the lease
/// is shorter than the renewal. A lease that has ended is returned, too: its key is gone, which is a loss. `kept` has the seconds that each lease lives from now on.
///
/// A retired lease may also bind keys of locks that were given up, and these stay as long as it. A full cluster could not
/// grant their names anyway.
fn keep_own(
    store: &Store,
    renewal: &RenewRequest<'_, EtcdLease>,
    asked_at: HostInstant,
    kept: &mut HashMap<i64, u64>,
    until: HostInstant,
) -> Result<Option<Lease>, Failure> {
    let id = renewal.lease.lease;
    let lives = match kept.get(&id) {
        Some(lives) => *lives,
        None => store.leases.keep_alive(id, until, None)?,
    };
    kept.insert(id, lives);
    let kept_at = asked_at;
    let is_fit = lives == 0 || lives >= seconds(renewal.ttl);
    Ok(is_fit.then_some(Lease { id, kept_at }))
}

/// Returns the key of the lease that an operation is about.
fn key_of(operation: &Operation<'_, EtcdLease>) -> Option<String> {
    match operation {
        Operation::Acquire(_) => None,
        Operation::Renew(it) => Some(it.lease.key.clone()),
        Operation::Release(it) => Some(it.lease.key.clone()),
    }
}

/// Returns the transaction that reads a key, or moves it to another lease.
fn renew(held: &EtcdLease, lease: Lease) -> Txn {
    let read = Txn::get(&held.key);
    if held.lease == lease.id {
        return read;
    }
    Txn {
        // With this condition, a late move does not bind the key to a lease that this process has retired.
        compare: vec![unchanged(&held.key, held.seen)],
        then: vec![put(&held.key, &held.value, lease.id)],
        // An earlier move whose reply is missing may have written it.
        otherwise: read.then,
    }
}

/// Sets the answer of an operation by the reply to its transaction. A renewal may have to be repeated.
fn answer(
    store: &Store,
    operation: &mut Operation<'_, EtcdLease>,
    part: Part<'_>,
    reply: TxnReply,
    until: HostInstant,
) {
    match (operation, part) {
        (Operation::Acquire(it), Part::Attempt(attempt, bound)) => {
            let answer = attempted(attempt, &bound, reply, until);
            it.answer = Some(answer.map_err(Failure::into_error));
        }
        (Operation::Renew(it), Part::Renewal(lease, asked_at)) => {
            it.answer = renewed(store, it, lease, asked_at, reply);
        }
        (Operation::Release(it), Part::Release) => {
            forget(store, it.lease);
            it.answer = Some(Ok(match reply.succeeded {
                true => Released::Done,
                false => Released::AlreadyLost,
            }));
        }
        _ => {}
    }
}

/// Returns whether a key is still of the holder of this lease.
pub(super) fn is_of(found: &KeyValue, held: &EtcdLease) -> bool {
    found.seen.created == held.seen.created && Entry::read(&found.value).resumed() == held.resumed
}

/// Leaves the end of a lease to others.
pub(super) fn forget(store: &Store, held: &EtcdLease) {
    let of = (held.seen.created, held.resumed);
    store.expiry.remove(&held.key, of);
}

/// Returns the result of an attempt. If the name was not free, the attempt continues alone. An earlier attempt of
/// the request may have taken the name, or the base of the epochs may have been raised. A permit may be free beside
/// others.
fn attempted(
    mut attempt: Attempt<'_>,
    bound: &Bound,
    reply: TxnReply,
    until: HostInstant,
) -> Result<Option<Grant<EtcdLease>>, Failure> {
    let asked = attempt.read(reply, None, 0, bound, until)?;
    match attempt.go_on(asked, until)? {
        Answer::Granted(grant) => Ok(Some(grant)),
        Answer::Queued(_) | Answer::Busy => {
            attempt.request.contended();
            Ok(None)
        }
    }
}

/// Returns the result of a renewal. `None` if the key is bound to another lease: then an earlier renewal moved it,
/// and it must be moved again.
fn renewed(
    store: &Store,
    renewal: &mut RenewRequest<'_, EtcdLease>,
    lease: Lease,
    asked_at: HostInstant,
    reply: TxnReply,
) -> Option<Result<Renewal, Error>> {
    let held = &mut *renewal.lease;
    let is_moved = held.lease != lease.id && reply.succeeded;
    let revision = reply.revision;
    match reply.found().map(|found| found.all.into_iter().next()) {
        None if is_moved => {
            held.seen.modified = revision;
            held.lease = lease.id;
        }
        None => return Some(Err(senseless())),
        Some(Some(found)) if is_of(&found, held) => {
            held.seen = found.seen;
            held.lease = found.lease;
        }
        Some(_) => {
            forget(store, held);
            return Some(Ok(Renewal::Lost));
        }
    }
    if held.lease != lease.id {
        return None;
    }
    let (of, ends) = ((held.seen.created, held.resumed), asked_at + renewal.ttl);
    store.expiry.enter(&held.key, of, lease.id, ends);
    Some(Ok(Renewal::Renewed))
}
