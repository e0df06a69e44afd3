//! The parts that a provider, its leases and its threads share.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use lockkeeper_core::{AcquireRequest, Clock, Error, HostInstant, LockName, Mode, Timer, epoch_at};
use lockkeeper_remote::{Failure, senseless};

use crate::batch::BATCH;
use crate::client::Client;
use crate::entry::Entry;
use crate::expiry::Expiry;
use crate::failure::{Refusal, at_opening};
use crate::keys::{CommonKeys, KeyRange, NameKeys};
use crate::leases::{Leases, grant};
use crate::listener::Listener;
use crate::options::EtcdOptions;
use crate::wire::{KeyValue, Txn, TxnReply, delete, exists_since, get, is_less, key_values};
use crate::wire::{none_of, put, range, revision};

/// The shortest lease of a cluster with default time-outs.
const USUAL_MIN_TTL: Duration = Duration::from_secs(2);
/// How often the keys of a request are looked for that may still be under way.
const LOOKS: usize = 4;

pub(crate) struct Store {
    pub(crate) client: Client,
    pub(crate) options: EtcdOptions,
    pub(crate) namespace: String,
    pub(crate) keys: CommonKeys,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) leases: Leases,
    pub(crate) expiry: Expiry,
    pub(crate) listener: Arc<Listener>,
    /// How many operations travel together: less than [`BATCH`] where the server has refused so many.
    pub(crate) most: AtomicUsize,
    /// How many batches to come are not joined.
    pub(crate) unjoined: AtomicU32,
    /// The number that epochs add to the revision, as it was last seen; 0 is unknown.
    base: AtomicU64,
    /// The largest epoch of a grant so far.
    largest_epoch: AtomicU64,
    /// Names the key that exclusive requests have. It need not differ from that of another provider.
    pub(crate) number: u64,
    /// The shortest lease that the cluster grants: 1.5 × its election time-out, rounded up to seconds.
    pub(crate) min_ttl: OnceLock<Duration>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("options", &self.options)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.listener.close();
    }
}

impl Store {
    /// Connects, and finds out the shortest lease.
    pub(crate) fn open(
        options: &EtcdOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        let client = Client::new(options, Arc::clone(&clock))?;
        let keys = CommonKeys::new(namespace);
        let store = Arc::new_cyclic(|store: &Weak<Self>| Self {
            listener: Listener::new(Arc::clone(&client.connector), keys.clone(), store.clone()),
            client,
            options: options.clone(),
            namespace: namespace.to_owned(),
            keys,
            expiry: Expiry::new(Timer::new(Arc::clone(&clock))),
            clock,
            leases: Leases::default(),
            most: AtomicUsize::new(BATCH),
            unjoined: AtomicU32::default(),
            base: AtomicU64::default(),
            largest_epoch: AtomicU64::default(),
            number: fastrand::u64(..),
            min_ttl: OnceLock::new(),
        });
        let until = store.clock.now() + options.remote.connect_timeout;
        let granted = grant(&store, 1, until, None);
        // A cluster that is full grants nothing, and an operator may look at what is held, and free it.
        if !Refusal::Full.is_in(&granted) {
            let error = |failure| store.client.connector.wanting_tls(at_opening(failure));
            let (lease, least) = granted.map_err(error)?;
            store.leases.add(least, lease);
            let _ = store.min_ttl.set(Duration::from_secs(least));
        }
        let left = until.saturating_since(store.clock.now());
        store.client.connector.compare(left / 2)?;
        let raised = store.raise_base(None, until);
        match Refusal::Full.is_in(&raised) {
            // The first grant raises it.
            true => store.note_epoch(epoch_at(SystemTime::now())),
            false => drop(raised.map_err(at_opening)?),
        }
        store.expiry.start(Arc::downgrade(&store))?;
        Ok(store)
    }

    pub(crate) fn min_ttl(&self) -> Duration {
        self.min_ttl.get().copied().unwrap_or(USUAL_MIN_TTL)
    }

    pub(crate) fn name_keys(&self, name: &LockName, mode: Mode) -> NameKeys {
        NameKeys::new(&self.namespace, name, mode.is_permit())
    }

    /// Reads keys, in the order of their creation, with the revision of the store.
    pub(crate) fn read(
        &self,
        keys: &KeyRange,
        until: HostInstant,
    ) -> Result<(Vec<KeyValue>, i64), Failure> {
        let reply = self.client.call("/v3/kv/range", &range(keys), until)?;
        Ok((key_values(&reply), revision(&reply)))
    }

    /// Raises the number that epochs add to the revision, and returns it. From the revision `granted` on (now, if
    /// `None`), epochs reach the clock and exceed all that this provider has seen.
    ///
    /// Revisions count from 1, and those of a cluster that was made anew begin again. With this number,
    /// epochs are larger than those of any other store and of a former cluster. Every grant reads or compares the
    /// number in its own transaction, so a later grant never has a smaller one.
    pub(crate) fn raise_base(
        &self,
        granted: Option<u64>,
        until: HostInstant,
    ) -> Result<u64, Failure> {
        let granted = match granted {
            Some(granted) => granted,
            None => {
                let (_, now) = self.read(&KeyRange::one(&self.keys.base), until)?;
                u64::try_from(now).unwrap_or(0)
            }
        };
        let least = epoch_at(SystemTime::now()).max(self.largest_epoch() + 1);
        let base = least.saturating_sub(granted);
        let text = base_text(base);
        let write = || vec![put(&self.keys.base, &text, 0)];
        let first = Txn {
            compare: vec![none_of(&KeyRange::one(&self.keys.base))],
            then: write(),
            otherwise: vec![get(&KeyRange::one(&self.keys.base))],
        };
        let raise = Txn {
            compare: vec![is_less(&self.keys.base, &text)],
            then: write(),
            otherwise: vec![first.nested()],
        };
        let reply = self.client.txn(raise, until)?;
        let reply = TxnReply(&reply);
        let nested = reply.nested(0);
        if reply.succeeded() || nested.is_some_and(TxnReply::succeeded) {
            self.note_base(Some(base));
            return Ok(base);
        }
        let stored = nested.and_then(|nested| base_in(&nested.keys(0)?));
        let stored = stored.ok_or_else(|| Failure::Refused(senseless()))?;
        self.note_base(Some(stored));
        Ok(stored)
    }

    /// Returns the number that epochs add to the revision, as it was last seen.
    pub(crate) fn base(&self) -> Option<u64> {
        Some(self.base.load(Ordering::Relaxed)).filter(|base| *base > 0)
    }

    /// Records the number that epochs add to the revision. `None` if another one took its place.
    pub(crate) fn note_base(&self, base: Option<u64>) {
        self.base.store(base.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the largest epoch of a grant so far.
    pub(crate) fn largest_epoch(&self) -> u64 {
        self.largest_epoch.load(Ordering::Relaxed)
    }

    /// Records the epoch of a grant.
    pub(crate) fn note_epoch(&self, epoch: u64) {
        self.largest_epoch.fetch_max(epoch, Ordering::Relaxed);
    }

    /// Deletes a key if it was created at this revision, and returns whether it was there.
    pub(crate) fn delete(
        &self,
        key: &str,
        created: i64,
        until: HostInstant,
    ) -> Result<bool, Failure> {
        let reply = self.client.txn(delete_if(key, created), until)?;
        Ok(TxnReply(&reply).succeeded())
    }

    /// Deletes the keys of a request, also what a request without a reply is still to write.
    ///
    /// A read would overtake such a request. So each look comes behind a write, which changes nothing. The server may take
    /// requests of several connections in any order, so there are several looks.
    pub(crate) fn forget(
        &self,
        request: &AcquireRequest<'_>,
        until: HostInstant,
    ) -> Result<(), Failure> {
        let keys = self.name_keys(request.name(), request.mode());
        let own = |it: &&KeyValue| Entry::read(&it.value).is_of(request);
        for _ in 0..LOOKS {
            self.delete(&self.keys.ended, i64::MAX, until)?;
            let (all, _) = self.read(&keys.all(), until)?;
            for found in all.iter().filter(own) {
                self.delete(&found.key, found.created, until)?;
            }
            if all.iter().any(|it| own(&it)) {
                break;
            }
        }
        Ok(())
    }
}

/// Returns the transaction that deletes a key if it was created at this revision.
pub(crate) fn delete_if(key: &str, created: i64) -> Txn {
    Txn {
        compare: vec![exists_since(key, created)],
        then: vec![delete(key)],
        otherwise: Vec::new(),
    }
}

/// Returns the number that epochs add to the revision, from the reply to a read of its key.
pub(crate) fn base_in(found: &[KeyValue]) -> Option<u64> {
    found.first()?.value.parse().ok()
}

/// Returns the number that epochs add to the revision as its key has it. Texts compare as the numbers do.
pub(crate) fn base_text(base: u64) -> String {
    format!("{base:020}")
}
