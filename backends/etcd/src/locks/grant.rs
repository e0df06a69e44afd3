//! The transactions that take a name or queue for it, and the grants in their replies.
//!
//! etcd's gateway reads a field of the JSON once for each level of objects around it, so a free name uses the
//! shortest transaction. Comparing the last base instead of reading it and the rivals saves some 20 % of a lock
//! and its release. The value is compared, since a new cluster may write its base at the same revision.
//!
//! `CREATE > n` over a range without keys is false, since a missing key counts as created at 0. So a reader needs a
//! nested transaction. No comparison counts keys. So a permit beside others needs a read, and a transaction that
//! fails if anything was written in between.

use lockkeeper_core::{Grant, HostInstant, MAX_EPOCH, Mode};
use lockkeeper_remote::{Failure, senseless};
use serde_json::Value;

use super::attempt::{Attempt, Bound, Permit, Stage};
use super::epochs::{base_in, base_text};
use super::lease::EtcdLease;
use super::leases::Lease;
use crate::connection::failure::Refusal;
use crate::wire::entry::{value, value_at};
use crate::wire::keys::KeyRange;
use crate::wire::txn::{
    Txn, TxnReply, exists_since, get, is_equal, none_before, none_of, put, unchanged,
    unchanged_since,
};
use crate::wire::{Found, KeyValue, Seen};

impl Attempt<'_> {
    /// Makes the request of a stage. Returns a grant, or the keys of the name as far as they were read.
    pub(super) fn carry_out(
        &mut self,
        stage: Stage,
        until: HostInstant,
    ) -> Result<Result<Grant<EtcdLease>, Found>, Failure> {
        let (client, cancel) = (&self.store.client, self.request.cancel());
        match stage {
            Stage::Look => return client.read(&self.keys.all(), until, cancel).map(Err),
            Stage::Enter => return self.enter(until).map(Err),
            Stage::Free | Stage::OnTurn(_) | Stage::Take(_) => {}
        }
        let bound = self.bind(until, cancel)?;
        let (txn, own, slot) = match stage {
            Stage::OnTurn(seen) => (self.on_turn(seen, &bound), Some(seen), 0),
            Stage::Take(it) => (self.take_permit(it, &bound), it.own, it.slot),
            _ => (self.first(&bound), None, 0),
        };
        let reply = self.txn(txn, bound.lease, until)?;
        self.read(reply, own, slot, &bound, until)
    }

    /// Carries out a transaction that binds the key to a lease, until `until` or a cancel.
    ///
    /// After a lost reply, the lease is retired: the request must not bind the key to a lease that is kept
    /// alive.
    pub(super) fn txn(
        &self,
        txn: Txn,
        lease: Lease,
        until: HostInstant,
    ) -> Result<TxnReply, Failure> {
        let reply = self.store.client.txn(txn, until, self.request.cancel());
        if matches!(reply, Err(Failure::Unanswered(_))) || Refusal::LeaseGone.is_in(&reply) {
            self.store.leases.retire(lease.id);
        }
        reply
    }

    /// Returns the operation that writes the key of a grant.
    fn put(&self, slot: u32, bound: &Bound) -> Value {
        let value = value_at(self.request, Some((slot, None)), bound.resumed);
        put(&self.key, &value, bound.lease.id)
    }

    /// Returns the operations of a grant: it reads the base of the epoch.
    pub(super) fn take(&self, slot: u32, bound: &Bound) -> Vec<Value> {
        let base = get(&KeyRange::one(self.store.keys.base.as_str()));
        vec![base, self.put(slot, bound)]
    }

    /// Returns the transaction that takes the name if there is no rival. Otherwise it reads the keys of the
    /// name, unless the request queues next. If the base of the epoch was raised, there may be no rival.
    ///
    /// A free name should need little: reading the base makes the reply longer, and a waiter reads the keys when it
    /// queues.
    pub(super) fn first(&self, bound: &Bound) -> Txn {
        let mode = self.request.mode();
        let known = bound.base.map(base_text);
        let then = match known {
            Some(_) => vec![self.put(0, bound)],
            None => self.take(0, bound),
        };
        let same_base = known.map(|base| is_equal(&self.store.keys.base, &base));
        let mut compare: Vec<_> = same_base.into_iter().collect();
        compare.push(none_of(&self.keys.rivals(mode)));
        // Else the request's own key is among the rivals.
        if mode == Mode::Shared {
            compare.push(exists_since(&self.key, 0));
        }
        let otherwise = match self.request.deadline() {
            Some(_) if !mode.is_permit() && !self.request.is_retry() => Vec::new(),
            _ => vec![get(&self.keys.all())],
        };
        Txn {
            compare,
            then,
            otherwise,
        }
    }

    /// Returns the transaction that takes the name if it is the turn of the request's key. Otherwise it reads the
    /// keys before that key.
    ///
    /// A late request must not bind a key that was granted meanwhile to a retired lease. So the key must be
    /// unchanged since it was last seen.
    fn on_turn(&self, seen: Seen, bound: &Bound) -> Txn {
        let mode = self.request.mode();
        let rivals = self.keys.rivals(mode);
        let take_if = |free, otherwise| Txn {
            compare: vec![unchanged(&self.key, seen), free],
            then: self.take(0, bound),
            otherwise,
        };
        let read = vec![get(&self.keys.all())];
        let none_before = take_if(none_before(&rivals, seen.created), read);
        match mode {
            // The comparison is false if there is no writer at all.
            Mode::Shared => take_if(none_of(&rivals), vec![none_before.nested()]),
            // The request's own key is among them.
            _ => none_before,
        }
    }

    /// Returns the transaction that takes a permit, and otherwise reads the keys again.
    fn take_permit(&self, permit: Permit, bound: &Bound) -> Txn {
        let mut compare = vec![unchanged_since(&self.keys.all(), permit.revision)];
        let own = permit.own.map(|it| exists_since(&self.key, it.created));
        compare.extend(own);
        Txn {
            compare,
            then: self.take(permit.slot, bound),
            otherwise: vec![get(&self.keys.all())],
        }
    }

    /// Enters the queue, and reads it. An existing key is not changed: this request may be late, and the key
    /// granted meanwhile.
    fn enter(&mut self, until: HostInstant) -> Result<Found, Failure> {
        let lease = self.waiting_lease(until)?;
        let read = get(&self.keys.all());
        let enter = Txn {
            compare: vec![exists_since(&self.key, 0)],
            then: vec![
                put(&self.key, &value(self.request, None), lease.id),
                read.clone(),
            ],
            otherwise: vec![read],
        };
        self.has_entered = true;
        let found = self.txn(enter, lease, until)?.found();
        found.ok_or_else(|| Failure::Refused(senseless()))
    }

    /// Moves a waiting key to the current lease for waiters, unless a request has written the key since. It keeps
    /// its position.
    pub(super) fn keep_place(&self, own: &KeyValue, until: HostInstant) -> Result<Seen, Failure> {
        let (lease, seen) = (self.waiting_lease(until)?, own.seen);
        if own.lease == lease.id {
            return Ok(seen);
        }
        let keep = Txn {
            compare: vec![unchanged(&self.key, seen)],
            then: vec![put(&self.key, &value(self.request, None), lease.id)],
            otherwise: Vec::new(),
        };
        let reply = self.txn(keep, lease, until)?;
        let modified = match reply.succeeded {
            true => reply.revision,
            // The next attempt reads it anew.
            false => seen.modified,
        };
        Ok(Seen { modified, ..seen })
    }

    /// Reads the reply to a transaction that takes the name. `own` is the request's key, if it existed before the
    /// transaction.
    pub(super) fn read(
        &self,
        reply: TxnReply,
        own: Option<Seen>,
        slot: u32,
        bound: &Bound,
        until: HostInstant,
    ) -> Result<Result<Grant<EtcdLease>, Found>, Failure> {
        let (succeeded, revision) = (reply.succeeded, reply.revision);
        let found = reply.found();
        if succeeded {
            let base = match &found {
                None => bound.base,
                Some(read) => read.all.first().and_then(base_in),
            };
            let grant = self.grant(revision, base, own, slot, bound, until);
            return grant.map(Ok);
        }
        let rivals = self.keys.rivals(self.request.mode());
        let is_free = |found: &Found| !found.all.iter().any(|it| rivals.contains(&it.key));
        if found.as_ref().is_some_and(is_free) {
            // The base was raised.
            self.store.epochs.note_base(None);
        }
        let all = Vec::new();
        Ok(Err(found.unwrap_or(Found { all, revision })))
    }

    /// Returns the grant at a revision.
    ///
    /// The epoch counts the revision of the grant: permits need not be granted in the order of their creation.
    fn grant(
        &self,
        granted: i64,
        base: Option<u64>,
        own: Option<Seen>,
        slot: u32,
        bound: &Bound,
        until: HostInstant,
    ) -> Result<Grant<EtcdLease>, Failure> {
        let (store, epochs) = (self.store, &self.store.epochs);
        let passed = u64::try_from(granted).unwrap_or(0);
        let epoch_over = |base: u64| base.saturating_add(passed).min(MAX_EPOCH);
        let base = match base {
            Some(base) if epoch_over(base) > bound.largest_epoch => base,
            // The cluster was wiped, or restored to a former state.
            _ => {
                let raised = epochs.raise(Some(passed), until);
                // The caller gets an error, so the key that was taken must end.
                raised.inspect_err(|_| store.leases.retire(bound.lease.id))?
            }
        };
        let (epoch, resumed) = (epoch_over(base), bound.resumed);
        epochs.note(epoch);
        epochs.note_base(Some(base));
        let created = own.map_or(granted, |own| own.created);
        let seen = Seen {
            created,
            modified: granted,
        };
        let Lease { id, kept_at } = bound.lease;
        let ends = self.request.now() + self.request.ttl();
        store.expiry.enter(&self.key, (created, resumed), id, ends);
        store.listener.note_grant();
        Ok(Grant {
            lease: EtcdLease {
                key: self.key.clone(),
                seen,
                lease: id,
                value: value_at(self.request, Some((slot, Some(epoch))), resumed),
                resumed,
            },
            epoch,
            asked_at: kept_at,
            slot,
        })
    }
}
