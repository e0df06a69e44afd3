//! The steps by which a request is granted, waits, or is busy.
//!
//! Attempts do not use `/v3/lock/lock`. It blocks a connection for each waiter, and has neither shared locks nor
//! permits. The server names its key, so a lost reply leaves the key of that waiter unknown.
//!
//! The epoch is a base plus the revision of the grant. Revisions begin at 1 in a new cluster, so the base is the
//! clock at the last opening minus the revision then. A restored snapshot has the former base with smaller
//! revisions. If the epoch of a grant is not above the earlier ones, the base is raised.

use std::time::Duration;

use lockkeeper_core::{AcquireRequest, Error, ErrorKind, Grant, HostInstant, Mode};
use lockkeeper_remote::Failure;
use serde_json::Value;

use crate::entry::Entry;
use crate::failure::Refusal;
use crate::keys::NameKeys;
use crate::leases::Lease;
use crate::provider::EtcdLease;
use crate::queue::{Ahead, Turn, check_limit, turn};
use crate::store::Store;
use crate::wire::{
    KeyValue, Seen, Txn, TxnReply, exists_since, key_values, range, revision, unchanged_since,
};

/// An acquisition binds its key to a lease that was kept alive not longer ago than this, or a part of its
/// ttl. It is less than the margin by default: a grant that is older is renewed before it is relied on.
const FRESH: Duration = Duration::from_millis(500);

/// The time within which the lease for `ttl` was kept alive, when a key is bound to it.
pub(crate) fn fresh(ttl: Duration) -> Duration {
    FRESH.min(ttl / 16)
}

/// The position of a request that waits.
pub(crate) struct Queued {
    pub(crate) seen: Seen,
    /// The revision at which this was its position.
    pub(crate) revision: i64,
    pub(crate) ahead: Ahead,
}

/// What a request was answered.
pub(crate) enum Answer {
    Granted(Grant<EtcdLease>),
    Queued(Queued),
    /// It has no key, and does not wait.
    Busy,
}

/// The leases to which a request binds its key.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    /// That of a grant.
    pub(crate) held: Lease,
    /// That of a key that waits, if the request may wait. It is short, so that a waiter that is gone does not
    /// hold up the others for long.
    pub(crate) waiting: Option<i64>,
    /// The number that epochs add to the revision, as it was last seen.
    pub(crate) base: Option<u64>,
    /// The largest epoch of a grant before the request was sent.
    pub(crate) largest_epoch: u64,
}

/// One request, in the form that every attempt needs.
pub(crate) struct Attempt<'a> {
    pub(crate) store: &'a Store,
    pub(crate) request: &'a AcquireRequest<'a>,
    pub(crate) key: String,
    pub(crate) keys: NameKeys,
    /// A request to enter the queue was sent, and the key may be there.
    pub(crate) has_entered: bool,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(store: &'a Store, request: &'a AcquireRequest<'a>) -> Self {
        let keys = store.name_keys(request.name(), request.mode());
        // An attempt without a reply may have written its key, and may still do so: this one is not to write it.
        let key = match request.mode() {
            Mode::Exclusive | Mode::Permit { .. } if !request.is_retry() => {
                keys.reused(request.mode(), store.number)
            }
            _ => keys.of(request),
        };
        Self {
            store,
            request,
            key,
            keys,
            has_entered: false,
        }
    }

    /// Carries out a transaction, until `until` or a cancel.
    pub(crate) fn txn(&self, txn: Txn, until: HostInstant) -> Result<Value, Failure> {
        let (client, cancel) = (&self.store.client, self.request.cancel());
        client.cancellable("/v3/kv/txn", &txn.body(), until, cancel)
    }

    /// Reads the keys of the name, until `until` or a cancel.
    fn read_queue(&self, until: HostInstant) -> Result<(Vec<KeyValue>, i64), Failure> {
        let (client, cancel) = (&self.store.client, self.request.cancel());
        let range = range(&self.keys.all());
        let reply = client.cancellable("/v3/kv/range", &range, until, cancel)?;
        Ok((key_values(&reply), revision(&reply)))
    }

    /// Asks until the request is granted, waits, or is busy. `queued` is its key as it was last seen, if it has one
    /// and its turn may have come.
    pub(crate) fn ask(
        &mut self,
        queued: Option<Seen>,
        until: HostInstant,
    ) -> Result<Answer, Failure> {
        let is_permit = self.request.mode().is_permit();
        let mut stage = queued.map_or(Stage::Free, Stage::Queued);
        loop {
            // A name that is free needs no lease for a key that waits.
            let bound = self.bind(stage != Stage::Free, until)?;
            let asked = match is_permit {
                true => self.ask_permit(stage, &bound, until),
                false => self.ask_lock(stage, &bound, until),
            };
            match asked {
                Ok(Step::Answer(answer)) => return Ok(answer),
                Ok(Step::Again(next)) => stage = next,
                asked if Refusal::LeaseGone.is_in(&asked) => self.retire(&bound),
                Err(failure) => {
                    // A request that is still under way must not bind a key to a lease that lives on.
                    if matches!(failure, Failure::Unanswered(_)) {
                        self.retire(&bound);
                    }
                    return Err(failure);
                }
            }
            if self.request.now() >= until {
                let text = "other requests for the name kept coming in between; ask again";
                let error = Error::new(ErrorKind::Unavailable, text);
                return Err(Failure::Refused(error));
            }
        }
    }

    /// Returns the leases to bind a key to, kept alive lately.
    pub(crate) fn bind(&self, may_queue: bool, until: HostInstant) -> Result<Bound, Failure> {
        let (leases, now) = (&self.store.leases, self.request.now());
        let current = |ttl, age| {
            let kept = HostInstant::from_nanos(now.as_nanos().saturating_sub(nanos(age)));
            leases.current(self.store, ttl, kept, until, self.request.cancel())
        };
        let ttl = self.request.ttl();
        let held = current(ttl, fresh(ttl))?;
        let waiting = self.request.deadline().filter(|_| may_queue).map(|_| {
            let least = self.store.min_ttl();
            current(least, least / 4)
        });
        let waiting = waiting.transpose()?.map(|lease| lease.id);
        Ok(Bound {
            held,
            waiting,
            base: self.store.base(),
            largest_epoch: self.store.largest_epoch(),
        })
    }

    /// Retires these leases: no more keys are bound to them.
    pub(crate) fn retire(&self, bound: &Bound) {
        self.store.leases.retire(bound.held.id);
        if let Some(id) = bound.waiting {
            self.store.leases.retire(id);
        }
    }

    fn ask_lock(
        &mut self,
        stage: Stage,
        bound: &Bound,
        until: HostInstant,
    ) -> Result<Step, Failure> {
        let (txn, queued) = match (stage, bound.waiting) {
            (Stage::Queued(seen), _) => (self.on_turn(seen, bound), Some(seen.created)),
            (Stage::Enter, Some(lease)) => {
                let (all, revision) = self.enter(lease, until)?;
                return self.place(&all, revision, bound, until);
            }
            _ => (self.first(bound), None),
        };
        let reply = self.txn(txn, until)?;
        match self.read(&reply, TxnReply(&reply), queued, bound, until)? {
            Ok(grant) => Ok(Step::Answer(Answer::Granted(grant))),
            Err(all) => self.place(&all, revision(&reply), bound, until),
        }
    }

    /// Returns whether no key of the name excludes a new request.
    pub(crate) fn is_free(&self, all: &[KeyValue]) -> bool {
        turn(self.request.mode(), &self.keys, all, None) == Turn::Granted(0)
    }

    /// Returns the key of the request. An earlier attempt may have written another one than this one would.
    pub(crate) fn own<'k>(&self, all: &'k [KeyValue]) -> Option<&'k KeyValue> {
        let mut all = all.iter();
        all.find(|it| Entry::read(&it.value).is_of(self.request))
    }

    /// Goes on with the key that the request has. If another request has that key, the next one is of its own.
    fn adopt<'k>(&mut self, all: &'k [KeyValue]) -> Option<&'k KeyValue> {
        let own = self.own(all);
        match own {
            Some(own) => self.key.clone_from(&own.key),
            None if all.iter().any(|it| it.key == self.key) => {
                self.key = self.keys.of(self.request);
            }
            None => {}
        }
        own
    }

    /// Finds the request among the keys of its name.
    fn place(
        &mut self,
        all: &[KeyValue],
        revision: i64,
        bound: &Bound,
        until: HostInstant,
    ) -> Result<Step, Failure> {
        let waits = self.request.deadline().is_some();
        let Some(own) = self.adopt(all) else {
            return Ok(match waits {
                // It has no key yet. Or the key has ended: this process was stopped or cut off for long.
                true => Step::Again(Stage::Enter),
                false if self.is_free(all) => Step::Again(Stage::Free),
                false => Step::Answer(Answer::Busy),
            });
        };
        let mut seen = own.seen();
        match turn(self.request.mode(), &self.keys, all, Some(seen.created)) {
            Turn::Waits(ahead) if bound.waiting.is_some() || !waits => {
                if let Some(lease) = bound.waiting.filter(|lease| own.lease != *lease) {
                    seen = self.keep_place(seen, lease, until)?;
                }
                Ok(Step::Answer(Answer::Queued(Queued {
                    seen,
                    revision,
                    ahead,
                })))
            }
            // If it waits, it first needs the lease for that.
            _ => Ok(Step::Again(Stage::Queued(seen))),
        }
    }

    /// Looks whether the turn of a request that waits has come, without writing.
    pub(crate) fn look(&mut self, until: HostInstant) -> Result<Option<Answer>, Failure> {
        let bound = self.bind(true, until)?;
        let (all, revision) = self.read_queue(until)?;
        check_limit(self.request.mode(), &all).map_err(Failure::Refused)?;
        match self.place(&all, revision, &bound, until)? {
            Step::Answer(answer) => Ok(Some(answer)),
            Step::Again(_) => Ok(None),
        }
    }

    /// A permit is granted by the number of keys before it, which no comparison tells. So unless there is none, its key
    /// is granted in a second transaction, if no key of the name was written meanwhile.
    fn ask_permit(
        &mut self,
        stage: Stage,
        bound: &Bound,
        until: HostInstant,
    ) -> Result<Step, Failure> {
        let mode = self.request.mode();
        let (all, revision) = match (stage, bound.waiting) {
            (Stage::Queued(_), _) => self.read_queue(until)?,
            (Stage::Enter, Some(lease)) => self.enter(lease, until)?,
            _ => {
                let reply = self.txn(self.first(bound), until)?;
                match self.read(&reply, TxnReply(&reply), None, bound, until)? {
                    Ok(grant) => return Ok(Step::Answer(Answer::Granted(grant))),
                    Err(all) => (all, revision(&reply)),
                }
            }
        };
        if let Err(error) = check_limit(mode, &all) {
            // Its key is not to wait for permits that it never gets.
            if self.store.forget(self.request, until).is_ok() {
                self.has_entered = false;
            }
            return Err(Failure::Refused(error));
        }
        let seen = self.adopt(&all).map(KeyValue::seen);
        let created = seen.map(|it| it.created);
        let Turn::Granted(slot) = turn(mode, &self.keys, &all, created) else {
            return self.place(&all, revision, bound, until);
        };
        let mut compare = vec![unchanged_since(&self.keys.all(), revision)];
        compare.extend(created.map(|created| exists_since(&self.key, created)));
        let txn = Txn {
            compare,
            then: self.take(slot, bound),
            otherwise: Vec::new(),
        };
        let reply = self.txn(txn, until)?;
        if !TxnReply(&reply).succeeded() {
            return Ok(Step::Again(seen.map_or(Stage::Enter, Stage::Queued)));
        }
        let grant = self.grant(&reply, TxnReply(&reply), created, slot, bound, until)?;
        Ok(Step::Answer(Answer::Granted(grant)))
    }
}

/// What is to be done after a reply.
enum Step {
    Answer(Answer),
    /// Ask again, from this stage on.
    Again(Stage),
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has no key, and the name may be free.
    Free,
    /// It is to enter the queue.
    Enter,
    /// It has a key, and its turn may have come.
    Queued(Seen),
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
