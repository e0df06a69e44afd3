//! The transactions that take a name or queue for it, and the grants in their replies.
//!
//! etcd's gateway reads a field of the JSON once for each level of objects around it, so a free name takes the
//! shortest transaction. To compare the last base costs some 20 % of a pair less than to read it and the rivals.
//! Its value is compared: a cluster that was made anew may write its base at the same revision.
//!
//! `CREATE > n` over a range without keys is false, since a missing key counts as created at 0. So a reader needs a
//! second transaction inside of the first. No comparison counts, so a permit beside others costs a read, and a
//! transaction that fails if anything was written in between.

use lockkeeper_core::{Grant, HostInstant, MAX_EPOCH, Mode};
use lockkeeper_remote::{Failure, senseless};
use serde_json::Value;

use crate::attempt::{Attempt, Bound};
use crate::entry::value;
use crate::keys::KeyRange;
use crate::leases::Lease;
use crate::provider::EtcdLease;
use crate::store::{base_in, base_text};
use crate::wire::{KeyValue, Seen, Txn, TxnReply, exists_since, get, is_equal, none_before};
use crate::wire::{none_of, put, revision, unchanged};

impl Attempt<'_> {
    /// Returns the operation that writes the key of a grant.
    fn put(&self, slot: u32, bound: &Bound) -> Value {
        let value = value(self.request, Some((slot, None)));
        put(&self.key, &value, bound.held.id)
    }

    /// Returns the operations of a grant: it reads the base of the epoch.
    pub(crate) fn take(&self, slot: u32, bound: &Bound) -> Vec<Value> {
        let base = get(&KeyRange::one(self.store.keys.base.as_str()));
        vec![base, self.put(slot, bound)]
    }

    /// Returns the transaction that takes the name if no rival is there. Otherwise it reads the keys of
    /// the name, unless the request goes on to queue. There is no rival if the base of the epoch was raised.
    ///
    /// A free name is to cost little: a read of the base has a long reply, and a waiter reads the keys when it queues.
    pub(crate) fn first(&self, bound: &Bound) -> Txn {
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

    /// Returns the transaction that takes the name if it is the turn of the request's key, and otherwise reads who
    /// is before it.
    ///
    /// A late request must not bind a key that was granted meanwhile to a retired lease. So the key is to be as it
    /// was last seen.
    pub(crate) fn on_turn(&self, seen: Seen, bound: &Bound) -> Txn {
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

    /// Enters the queue, and reads it. A key that is there stays as it is: this request may be a late one, and the
    /// key be granted meanwhile.
    pub(crate) fn enter(
        &mut self,
        lease: i64,
        until: HostInstant,
    ) -> Result<(Vec<KeyValue>, i64), Failure> {
        let enter = Txn {
            then: vec![
                put(&self.key, &value(self.request, None), lease),
                get(&self.keys.all()),
            ],
            compare: vec![exists_since(&self.key, 0)],
            otherwise: vec![get(&self.keys.all())],
        };
        self.has_entered = true;
        let reply = self.txn(enter, until)?;
        let reply_of = TxnReply(&reply);
        let all = reply_of.keys(1).or_else(|| reply_of.keys(0));
        Ok((
            all.ok_or_else(|| Failure::Refused(senseless()))?,
            revision(&reply),
        ))
    }

    /// Moves a key that waits to another lease, unless a request has written it since. It keeps its position.
    pub(crate) fn keep_place(
        &self,
        seen: Seen,
        lease: i64,
        until: HostInstant,
    ) -> Result<Seen, Failure> {
        let txn = Txn {
            compare: vec![unchanged(&self.key, seen)],
            then: vec![put(&self.key, &value(self.request, None), lease)],
            otherwise: Vec::new(),
        };
        let reply = self.txn(txn, until)?;
        let modified = match TxnReply(&reply).succeeded() {
            true => revision(&reply),
            // The next attempt reads it anew.
            false => seen.modified,
        };
        Ok(Seen { modified, ..seen })
    }

    /// Reads the reply to a transaction in the reply to a request. That is the grant of the key that was created at a
    /// revision or by the transaction, or the keys of the name.
    pub(crate) fn read(
        &self,
        whole: &Value,
        reply: TxnReply<'_>,
        created: Option<i64>,
        bound: &Bound,
        until: HostInstant,
    ) -> Result<Result<Grant<EtcdLease>, Vec<KeyValue>>, Failure> {
        if reply.succeeded() {
            let grant = self.grant(whole, reply, created, 0, bound, until);
            return grant.map(Ok);
        }
        if let Some(nested) = reply.nested(0) {
            return self.read(whole, nested, created, bound, until);
        }
        let Some(all) = reply.keys(0) else {
            return Ok(Err(Vec::new()));
        };
        if self.is_free(&all) {
            // The base was raised.
            self.store.note_base(None);
        }
        Ok(Err(all))
    }

    /// Returns the grant of the key that was created at a revision, or by the transaction.
    ///
    /// The epoch counts the revision of the grant: permits need not be granted in the order of their creation.
    pub(crate) fn grant(
        &self,
        whole: &Value,
        reply: TxnReply<'_>,
        created: Option<i64>,
        slot: u32,
        bound: &Bound,
        until: HostInstant,
    ) -> Result<Grant<EtcdLease>, Failure> {
        let read = reply.keys(0);
        let compared = bound.base.filter(|_| read.is_none());
        let granted = revision(whole);
        let passed = u64::try_from(granted).unwrap_or(0);
        let epoch_over = |base: u64| base.saturating_add(passed).min(MAX_EPOCH);
        let base = compared.or_else(|| base_in(&read.unwrap_or_default()));
        let base = match base {
            Some(base) if epoch_over(base) > bound.largest_epoch => base,
            // The cluster was wiped, or restored to a former state.
            _ => {
                let raised = self.store.raise_base(Some(passed), until);
                // The caller gets an error, and the key that was taken is to end.
                raised.inspect_err(|_| self.retire(bound))?
            }
        };
        let epoch = epoch_over(base);
        self.store.note_epoch(epoch);
        self.store.note_base(Some(base));
        let created = created.unwrap_or(granted);
        let seen = Seen {
            created,
            modified: granted,
        };
        let (ttl, Lease { id, kept_at }) = (self.request.ttl(), bound.held);
        let now = self.request.now();
        self.store.expiry.enter(&self.key, created, id, now + ttl);
        if kept_at < self.request.started() {
            self.store.expiry.refresh(ttl, now);
        }
        self.store.listener.note_grant();
        Ok(Grant {
            lease: EtcdLease {
                key: self.key.clone(),
                seen,
                lease: id,
                value: value(self.request, Some((slot, Some(epoch)))),
            },
            epoch,
            asked_at: kept_at,
            slot,
        })
    }
}
