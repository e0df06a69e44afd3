//! The provider of locks in a cluster.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use lockkeeper_core::ErrorKind;
use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Clock, Error, Grant, HostInstant, LeaseVerifier,
    Operation, Released, RenewRequest, Renewal, StoreInfo, StoreUrl, SystemClock, Usage,
};
use lockkeeper_remote::{Endpoint, senseless};

use crate::batch::released;
use crate::bucket_keys::slot;
use crate::cluster::Cluster;
use crate::lease::RedisLease;
use crate::owner::owner;
use crate::provider::capabilities;
use crate::{BACKEND, RedisOptions};

/// How many nodes have batches and threads of their own; further ones share them. The map lists the replicas of a
/// primary behind it, so primaries have distances, and a prime spreads those.
const PARTS: usize = 13;

/// Locks in a Redis or Valkey cluster, for all programs that connect to it. Clones share their connections.
///
/// A name belongs to a slot, and the primary that owns the slot keeps its locks as a single server does: see
/// [`RedisProvider`](crate::RedisProvider). Each primary that is used has a pool of at most
/// [`RedisOptions::pool_size`] connections and one connection that listens. The map of the slots is asked of any node
/// that is known, and again when a node fails. Nodes that refuse a request as not theirs correct it.
///
/// A fail-over is an outage of the slots of that primary: acquisitions with a wait ride it out, and leases are verified at
/// the new primary. While a slot is moved, acquisitions of its names wait, also of those that are not held; leases in it are
/// renewed and released meanwhile.
///
/// # Limits
/// - Replicas follow a primary a moment later. When one takes over that had not heard of a grant, a name can be granted
///   twice; [`RedisOptions::replicas`] makes that rarer and not impossible. The fencing token still tells
///   the later grant, unless the new primary's clock is behind the old one's by more than the time in between.
/// - Those who wait lose their order when a replica takes over, or their slot is moved. They go on waiting within a second.
/// - `restart_grace` is about nodes that were started, and not about replicas that took over.
/// - Some 1,000 keys for each namespace stay, which keep the last epochs.
/// - Other limits are those of a single server.
#[derive(Clone, Debug)]
pub struct RedisClusterProvider {
    cluster: Arc<Cluster>,
}

impl RedisClusterProvider {
    /// Finds the primaries within the connect timeout, and tries on those that reply whether the user may do what a lock
    /// needs. Takes options from [`RedisOptions::cluster`]. Locks of two namespaces never meet.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`] if no node or no primary replies.
    /// - [`ErrorKind::PermissionDenied`] for a wrong password, a missing permission, or a certificate that is not
    ///   trusted.
    /// - [`ErrorKind::Incompatible`] for a server that is not in cluster mode.
    /// - [`ErrorKind::InvalidValue`] for options out of bounds.
    pub fn open(options: &RedisOptions, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(options, namespace, Arc::new(SystemClock))
    }

    /// Opens a provider that counts time on the clock of its keepers: see [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let cluster = Cluster::new(options, namespace, clock)
            .and_then(|cluster| cluster.probe().map(|()| cluster));
        let cluster = cluster.map_err(|error| error.with_backend(BACKEND))?;
        Ok(Self {
            cluster: Arc::new(cluster),
        })
    }
}

impl StoreInfo for RedisClusterProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let nodes = self.cluster.options.nodes.iter().map(Endpoint::to_string);
        let mut nodes: Vec<_> = nodes.collect();
        // Programs may list them in another order.
        nodes.sort();
        let query = [("namespace", self.cluster.namespace.as_str())];
        StoreUrl::location(&format!("redis+cluster://{}", nodes.join(",")), "", &query)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
            // An attempt may have to ask for the map, too.
            .with_attempt_limit(2 * self.cluster.options.remote.attempt_time())
            .with_parts(PARTS)
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.cluster.counts.usage())
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.cluster)
    }
}

impl Backend for RedisClusterProvider {
    type Lease = RedisLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<RedisLease>>, Error> {
        self.cluster.acquire(request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        let key = self.cluster.key(request);
        let _ = self.cluster.release(&key, &owner(request), request.end());
    }

    fn renew(
        &self,
        lease: &mut RedisLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        let mut operations = [Operation::Renew(RenewRequest {
            lease,
            ttl,
            deadline,
            answer: None,
        })];
        self.cluster.batch(&mut operations);
        match operations {
            [Operation::Renew(it)] => it.answer.unwrap_or_else(|| Err(senseless())),
            _ => Err(senseless()),
        }
    }

    fn release(&self, lease: &mut RedisLease, deadline: HostInstant) -> Result<Released, Error> {
        let now = self.cluster.clock.now();
        // A node that is gone is not waited for as long as the lease would last.
        let longest = 2 * self.cluster.options.remote.response_timeout;
        let until = deadline.min(now + longest);
        let was_held = self.cluster.release(&lease.key, &lease.text, until);
        was_held.map(released)
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        let slot = slot(&self.cluster.key(request));
        self.cluster.map.number_of_owner(slot)
    }

    fn batch(&self, operations: &mut [Operation<'_, RedisLease>]) {
        self.cluster.batch(operations);
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.cluster.verifiers.add(verifier);
    }
}
