//! The epochs of grants: a base plus the revision of the grant.
//!
//! Revisions begin at 1 in a new cluster, so the base is the clock at the last opening minus the revision at that
//! time. A restored snapshot has the former base, but smaller revisions. If the epoch of a grant is not above the
//! earlier ones, the base is raised.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use lockkeeper_core::{HostInstant, epoch_at};
use lockkeeper_remote::{Failure, senseless};

use crate::connection::client::Client;
use crate::wire::KeyValue;
use crate::wire::keys::KeyRange;
use crate::wire::txn::{Txn, get, is_less, none_of, put};

/// What a provider knows of the epochs of its namespace.
pub(crate) struct Epochs {
    client: Arc<Client>,
    /// The key of the base.
    key: String,
    /// The base as it was last seen; 0 is unknown.
    base: AtomicU64,
    /// The largest epoch of a grant so far.
    largest: AtomicU64,
}

impl Epochs {
    pub(crate) fn new(client: Arc<Client>, key: String) -> Self {
        Self {
            client,
            key,
            base: AtomicU64::default(),
            largest: AtomicU64::default(),
        }
    }

    /// Raises the base, and returns it. From the revision `granted` on (`None`: the present one), epochs reach the
    /// clock and exceed all epochs that this provider has seen.
    ///
    /// So epochs are larger than those of any other store and of a former cluster. Every grant reads or compares the
    /// base in its own transaction, so a later grant never has a smaller one.
    pub(crate) fn raise(&self, granted: Option<u64>, until: HostInstant) -> Result<u64, Failure> {
        let (client, key) = (&self.client, KeyRange::one(self.key.as_str()));
        let granted = match granted {
            Some(granted) => granted,
            None => u64::try_from(client.read(&key, until, None)?.revision).unwrap_or(0),
        };
        let least = epoch_at(SystemTime::now()).max(self.largest() + 1);
        let base = least.saturating_sub(granted);
        let text = base_text(base);
        let write = || vec![put(&self.key, &text, 0)];
        let first = Txn {
            compare: vec![none_of(&key)],
            then: write(),
            otherwise: vec![get(&key)],
        };
        let raise = Txn {
            compare: vec![is_less(&self.key, &text)],
            then: write(),
            otherwise: vec![first.nested()],
        };
        let reply = client.txn(raise, until, None)?;
        let base = match reply.succeeded {
            true => Some(base),
            false => reply.found().and_then(|found| base_in(found.all.first()?)),
        };
        self.note_base(base);
        base.ok_or_else(|| Failure::Refused(senseless()))
    }

    /// Returns the base as it was last seen.
    pub(crate) fn base(&self) -> Option<u64> {
        Some(self.base.load(Ordering::Relaxed)).filter(|base| *base > 0)
    }

    /// Records the base. `None` if another one took its place.
    pub(crate) fn note_base(&self, base: Option<u64>) {
        self.base.store(base.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the largest epoch of a grant so far.
    pub(crate) fn largest(&self) -> u64 {
        self.largest.load(Ordering::Relaxed)
    }

    /// Records the epoch of a grant.
    pub(crate) fn note(&self, epoch: u64) {
        self.largest.fetch_max(epoch, Ordering::Relaxed);
    }
}

/// Returns the base from its key.
pub(crate) fn base_in(found: &KeyValue) -> Option<u64> {
    found.value.parse().ok()
}

/// Returns the base as its key has it. Texts compare as the numbers do.
pub(crate) fn base_text(base: u64) -> String {
    format!("{base:020}")
}
