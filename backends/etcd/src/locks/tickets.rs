//! Leases that no process has, and processes that go on with one.
//!
//! A detached key is bound to a lease of its own in etcd, which nobody keeps alive, so it ends with its ttl whatever the
//! process does. The value of a resumed key begins with the revision at which the key was written before. No two holders
//! have the same one, so a former holder sees that the key is not its own, and does not delete it.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant, LeaseId};
use lockkeeper_remote::{Failure, senseless};

use super::attempt::{Attempt, Bound};
use super::batch::{forget, is_of};
use super::lease::EtcdLease;
use super::leases::seconds;
use crate::store::Store;
use crate::wire::entry::Entry;
use crate::wire::txn::{Txn, put, unchanged};

/// Binds the key of a lease to a lease of its own in etcd. `None` if it was lost.
pub(crate) fn detach(
    store: &Store,
    held: &mut EtcdLease,
    ttl: Duration,
    until: HostInstant,
) -> Result<Option<LeaseId>, Failure> {
    let (own, _) = store.leases.grant(seconds(ttl), until, None)?;
    loop {
        let mut txn = Txn::get(&held.key);
        txn.otherwise = std::mem::take(&mut txn.then);
        txn.compare = vec![unchanged(&held.key, held.seen)];
        txn.then = vec![put(&held.key, &held.value, own.id)];
        let reply = store.client.txn(txn, until, None)?;
        if reply.succeeded {
            forget(store, held);
            let id = Entry::read(&held.value).lease_id();
            return id.map(Some).ok_or_else(|| Failure::Refused(senseless()));
        }
        let found = reply.found().and_then(|found| found.all.into_iter().next());
        match found.filter(|found| is_of(found, held)) {
            // An earlier request without a reply has written it.
            Some(found) if store.client.clock.now() < until => held.seen = found.seen,
            Some(_) => return Err(Failure::Refused(interrupted())),
            None => {
                forget(store, held);
                return Ok(None);
            }
        }
    }
}

/// Goes on with the lease that the owner of a request has. `None` if there is none.
pub(super) fn resume(
    store: &Store,
    request: &AcquireRequest<'_>,
    until: HostInstant,
) -> Result<Option<Grant<EtcdLease>>, Failure> {
    let mut attempt = Attempt::new(store, request);
    let all = attempt.keys.all();
    loop {
        let found = store.client.read(&all, until, request.cancel())?;
        let is_own = |value: &str| {
            let entry = Entry::read(value);
            entry.is_of(request) && entry.is_held()
        };
        let Some(own) = found.all.into_iter().find(|it| is_own(&it.value)) else {
            return Ok(None);
        };
        attempt.key.clone_from(&own.key);
        let bound = Bound {
            resumed: own.seen.modified,
            ..attempt.bind(until, request.cancel())?
        };
        let txn = Txn {
            compare: vec![unchanged(&own.key, own.seen)],
            then: attempt.take(0, &bound),
            otherwise: Vec::new(),
        };
        let reply = attempt.txn(txn, bound.lease, until)?;
        if reply.succeeded {
            let grant = attempt.read(reply, Some(own.seen), 0, &bound, until)?;
            return Ok(grant.ok());
        }
        if store.client.clock.now() >= until {
            return Err(Failure::Refused(interrupted()));
        }
    }
}

fn interrupted() -> Error {
    let text = "other requests for the lock kept coming in between; ask again";
    Error::new(ErrorKind::Unavailable, text)
}
