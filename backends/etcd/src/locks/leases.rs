//! The leases of a provider in etcd: one for each ttl in use, to which the keys of all its locks are bound.
//!
//! So a keep-alive renews all locks with the same ttl, and an acquisition needs no new lease. A key ends with the
//! lease. If only its own renewals stop, [`expiry`](super::expiry) ends it.
//!
//! With a lease for each lock, each acquisition would need another write (`LeaseGrant` goes through the log), and
//! each lock another keep-alive. An acquisition needs a lease with a recent keep-alive, and the guard's time counts
//! from that keep-alive.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper_core::{CancelToken, HostInstant};
use lockkeeper_remote::{Failure, senseless};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::connection::client::Client;
use crate::wire::number;

/// The shortest lease of a cluster with default time-outs.
const USUAL_MIN_TTL: Duration = Duration::from_secs(2);
/// A waiter looks after its key this often, and for its turn, where no notification came.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A lease that lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// A time before the last keep-alive was sent: the lease lives for its ttl from then on.
    pub(crate) kept_at: HostInstant,
}

pub(crate) struct Leases {
    client: Arc<Client>,
    /// By their ttl in seconds.
    current: Mutex<BTreeMap<u64, Lease>>,
    /// The shortest lease that the cluster grants: 1.5 × its election time-out, rounded up to seconds.
    min_ttl: OnceLock<Duration>,
}

/// Returns the ttl in seconds of the lease for locks with `ttl`, since etcd counts whole seconds.
pub(super) fn seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

impl Leases {
    pub(crate) fn new(client: Arc<Client>) -> Self {
        Self {
            client,
            current: Mutex::default(),
            min_ttl: OnceLock::new(),
        }
    }

    /// Grants the first lease, with the shortest ttl that the cluster has.
    pub(crate) fn open(&self, until: HostInstant) -> Result<(), Failure> {
        let (lease, least) = self.grant(1, until, None)?;
        self.add(least, lease);
        let _ = self.min_ttl.set(Duration::from_secs(least));
        Ok(())
    }

    /// Returns the shortest ttl.
    pub(crate) fn min_ttl(&self) -> Duration {
        self.min_ttl.get().copied().unwrap_or(USUAL_MIN_TTL)
    }

    /// Returns the lease for locks with `ttl`, kept alive at `fresh` or later.
    pub(crate) fn current(
        &self,
        ttl: Duration,
        fresh: HostInstant,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Lease, Failure> {
        let seconds = seconds(ttl);
        loop {
            let known = self.current.lock().get(&seconds).copied();
            let Some(lease) = known else {
                let (lease, _) = self.grant(seconds, until, cancel)?;
                // Another thread may have added a lease that was granted earlier.
                self.add(seconds, lease);
                continue;
            };
            if lease.kept_at >= fresh {
                return Ok(lease);
            }
            let kept_at = self.client.clock.now();
            if self.keep_alive(lease.id, until, cancel)? > 0 {
                let kept = Lease { kept_at, ..lease };
                let mut current = self.current.lock();
                if let Some(lease) = current.get_mut(&seconds).filter(|it| it.id == kept.id) {
                    lease.kept_at = lease.kept_at.max(kept.kept_at);
                }
                return Ok(kept);
            }
            self.retire(lease.id);
        }
    }

    /// Returns the ttl of a lease to which keys are still bound.
    pub(crate) fn ttl_of(&self, id: i64) -> Option<Duration> {
        let current = self.current.lock();
        let found = current.iter().find(|(_, lease)| lease.id == id);
        found.map(|(seconds, _)| Duration::from_secs(*seconds))
    }

    /// Adds a lease, unless another thread has added one meanwhile. The keys of a process share one lease.
    fn add(&self, seconds: u64, lease: Lease) {
        self.current.lock().entry(seconds).or_insert(lease);
    }

    /// Stops binding keys to a lease, and stops its keep-alives. Its keys move to another lease when they
    /// are renewed. The lease ends within its ttl.
    ///
    /// A request with a missing reply may be carried out later. Then its keys are bound to a lease that
    /// ends, and not to one that this process keeps alive.
    pub(crate) fn retire(&self, id: i64) {
        self.current.lock().retain(|_, lease| lease.id != id);
    }

    /// Returns the ttl of waiting keys. It is short, so that a waiter that is gone does not hold up the others for long.
    /// But one that lives is to look after its key in time, whatever the cluster's shortest lease is.
    pub(super) fn waiting_ttl(&self) -> Duration {
        self.min_ttl().max(LOOK_EVERY * 2)
    }

    /// Retires the lease of waiting keys. These end soon, unless their waiters move them to another lease.
    pub(crate) fn retire_waiting(&self) {
        self.current.lock().remove(&seconds(self.waiting_ttl()));
    }

    /// Grants a lease, until `until` or a cancel. Returns it with the ttl in seconds that the cluster gave it, which has a
    /// minimum.
    pub(super) fn grant(
        &self,
        seconds: u64,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<(Lease, u64), Failure> {
        let kept_at = self.client.clock.now();
        let body = json!({ "TTL": seconds.to_string() });
        let reply = self.client.call("/v3/lease/grant", &body, until, cancel)?;
        let field = |name| number(reply.get(name).unwrap_or(&Value::Null));
        let ttl = u64::try_from(field("TTL")).ok().filter(|ttl| *ttl > 0);
        let ttl = ttl.ok_or_else(|| Failure::Refused(senseless()))?;
        let id = field("ID");
        Ok((Lease { id, kept_at }, ttl))
    }

    /// Keeps a lease alive, and returns how many seconds it lives from now on: 0 if it has ended.
    pub(super) fn keep_alive(
        &self,
        id: i64,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<u64, Failure> {
        let body = json!({ "ID": id.to_string() });
        let path = "/v3/lease/keepalive";
        let reply = self.client.call(path, &body, until, cancel)?;
        let ttl = reply.pointer("/result/TTL").map_or(0, number);
        Ok(u64::try_from(ttl).unwrap_or(0))
    }
}
