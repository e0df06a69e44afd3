//! The leases of a provider in etcd: one for each ttl in use, to which the keys of all its locks are bound.
//!
//! So a keep-alive serves all locks with one ttl, and an acquisition needs no lease of its own. A key ends with the
//! lease, or by [`expiry`](crate::expiry) when its own renewals stop while others keep the lease alive.
//!
//! A lease for each lock would cost each acquisition another write (`LeaseGrant` goes through the log), and each
//! lock a keep-alive of its own. An acquisition needs a lease that was kept alive lately, and the guard counts from
//! that keep-alive.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_core::{CancelToken, HostInstant};
use lockkeeper_remote::{Failure, senseless};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::store::Store;
use crate::wire::number;

/// A lease that lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// A time before the last keep-alive was sent: the lease lives for its ttl from then on.
    pub(crate) kept_at: HostInstant,
}

/// The leases by their ttl in seconds.
#[derive(Default)]
pub(crate) struct Leases(Mutex<BTreeMap<u64, Lease>>);

/// Returns the ttl of the lease for locks with `ttl`: etcd counts whole seconds.
pub(crate) fn seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

/// Grants a lease, until `until` or a cancel. Returns it with the ttl in seconds that the cluster gave it, which has a minimum.
pub(crate) fn grant(
    store: &Store,
    seconds: u64,
    until: HostInstant,
    cancel: Option<&CancelToken>,
) -> Result<(Lease, u64), Failure> {
    let kept_at = store.clock.now();
    let body = json!({ "TTL": seconds.to_string() });
    let reply = store
        .client
        .cancellable("/v3/lease/grant", &body, until, cancel)?;
    let field = |name| number(reply.get(name).unwrap_or(&Value::Null));
    let ttl = u64::try_from(field("TTL")).ok().filter(|ttl| *ttl > 0);
    let ttl = ttl.ok_or_else(|| Failure::Refused(senseless()))?;
    let id = field("ID");
    Ok((Lease { id, kept_at }, ttl))
}

impl Leases {
    /// Returns the lease for locks with `ttl`, kept alive at `fresh` or later.
    pub(crate) fn current(
        &self,
        store: &Store,
        ttl: Duration,
        fresh: HostInstant,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Lease, Failure> {
        let seconds = seconds(ttl);
        loop {
            let known = self.0.lock().get(&seconds).copied();
            let Some(lease) = known else {
                let (lease, _) = grant(store, seconds, until, cancel)?;
                // Another thread may have entered one that was granted earlier.
                self.add(seconds, lease);
                continue;
            };
            if lease.kept_at >= fresh {
                return Ok(lease);
            }
            if let Some(kept) = keep_alive(store, lease, until, cancel)? {
                self.note(seconds, kept);
                return Ok(kept);
            }
            self.retire(lease.id);
        }
    }

    /// Returns the ttl of a lease to which keys are still bound.
    pub(crate) fn ttl_of(&self, id: i64) -> Option<Duration> {
        let leases = self.0.lock();
        let found = leases.iter().find(|(_, lease)| lease.id == id);
        found.map(|(seconds, _)| Duration::from_secs(*seconds))
    }

    /// Enters a lease, unless another thread was granted one meanwhile: the keys of a process are to share one.
    pub(crate) fn add(&self, seconds: u64, lease: Lease) {
        self.0.lock().entry(seconds).or_insert(lease);
    }

    /// Keeps a lease alive in the background if no request did so since `fresh`. Returns false if it is to be
    /// tried again.
    pub(crate) fn refresh(&self, store: &Store, ttl: Duration, fresh: HostInstant) -> bool {
        let until = store.clock.now() + store.client.attempt();
        self.current(store, ttl, fresh, until, None).is_ok()
    }

    fn note(&self, seconds: u64, kept: Lease) {
        if let Some(lease) = self.0.lock().get_mut(&seconds)
            && lease.id == kept.id
        {
            lease.kept_at = lease.kept_at.max(kept.kept_at);
        }
    }

    /// Binds no more keys to a lease, and keeps it alive no more. Its keys move to another one when they are
    /// renewed, and it ends within its ttl.
    ///
    /// A request whose reply is missing may be carried out later. What it writes then is bound to a lease
    /// that ends, and not to one that this process keeps alive.
    pub(crate) fn retire(&self, id: i64) {
        self.0.lock().retain(|_, lease| lease.id != id);
    }

    /// Retires the lease for locks with `ttl`.
    pub(crate) fn retire_for(&self, ttl: Duration) {
        self.0.lock().remove(&seconds(ttl));
    }
}

/// Keeps a lease alive. `None` if it has ended.
fn keep_alive(
    store: &Store,
    lease: Lease,
    until: HostInstant,
    cancel: Option<&CancelToken>,
) -> Result<Option<Lease>, Failure> {
    let kept_at = store.clock.now();
    let body = json!({ "ID": lease.id.to_string() });
    let reply = store
        .client
        .cancellable("/v3/lease/keepalive", &body, until, cancel)?;
    let ttl = reply.pointer("/result/TTL").map_or(0, number);
    Ok((ttl > 0).then_some(Lease { kept_at, ..lease }))
}
