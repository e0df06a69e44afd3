//! The provider: what users open. It says what the store is and can do, and forwards the verbs to [`Locks`].

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use lockkeeper_core::ErrorKind;
use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Capability, Clock, Error, Grant, HostInstant,
    LeaseId, LeaseVerifier, Operation, ReleaseDispatch, RenewRequest, Renewal, StoreInfo, StoreUrl,
    SystemClock, Usage,
};
use lockkeeper_remote::{Endpoint, senseless};

use crate::locks::Locks;
use crate::options::{BACKEND, RedisOptions};
use crate::topology::Topology;
use crate::wire::lease::{RedisLease, id};

/// The largest number of operations that are sent together.
const BATCH: usize = 500;
/// The largest limit of a semaphore. To find the smallest free slot, the script reads all held permits.
/// That takes almost a microsecond for each permit, and blocks the server.
const MAX_PERMITS: u32 = 1_000;

/// Locks on one Redis or Valkey server, or in a cluster of several, for all programs that connect to it. Clones share
/// their connections.
///
/// Connections are opened when they are needed, at most [`RedisOptions::pool_size`] of them, and kept. A thread
/// listens on another connection. From the first acquisition that waits, it listens for releases by other
/// processes. From 50 ms after the first grant, it listens for events that end leases. These are the end of the
/// server, a flush, and [`Admin::force_release`]; after them, the keepers verify their leases at once. Noticing a
/// flush at once needs the permission `+client|tracking`; otherwise the next renewal notices it. If there are
/// sentinels, another thread listens to one of them: see [`RedisOptions::sentinel`].
///
/// # Clusters
/// In a [cluster](RedisOptions::cluster) a name belongs to a slot, and the primary that owns the slot keeps its
/// locks as a single server does. Each primary in use has a pool and a connection that listens. Any known node is
/// asked for the map of the slots, and again when a node fails. A node that refuses a request of another node's
/// slot corrects the map.
///
/// A fail-over is an outage of the slots of that primary. Acquisitions with a wait last through it, and leases are
/// verified at the new primary. While a slot is moved, acquisitions of its names wait, also of free names. Its
/// leases are renewed and released meanwhile. Waiters lose their order then, and continue to wait within a second.
/// Some 1,000 keys of each namespace stay, which keep the last epochs. `restart_grace` applies to nodes that were
/// started, and not to replicas that took over.
///
/// # Limits
/// - A single server decides about a name: that of the options, the primary that sentinels name, or the primary of
///   the name's slot. Replicas follow it with a delay. If a replica takes over that has not received a grant, the
///   name can be granted twice. [`RedisOptions::replicas`] makes that rarer, but not impossible. The larger fencing
///   token still shows the later grant. It does not if the new server's clock is behind the old one's by more than
///   the time between the grants.
/// - A semaphore has at most 1,000 permits.
/// - A server that evicts keys (`maxmemory-policy` other than `noeviction`) may evict locks.
/// - Connecting by a Unix socket takes no timeout: while the server is stopped and its backlog is
///   full, it blocks. Finding a host's addresses takes as long as the system's resolver does.
/// - Do not use it on both sides of a fork; open it after forking.
#[derive(Clone, Debug)]
pub struct RedisProvider {
    locks: Arc<Locks>,
}

impl RedisProvider {
    /// Connects, logs in, and tries every command that a lock needs, within the connect timeout. In
    /// a cluster, it does so on all primaries that reply. Namespaces are separate.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`] if the server is out of reach, or no primary of the cluster replies.
    /// - [`ErrorKind::PermissionDenied`] for a wrong password, a missing permission, a certificate that is not
    ///   trusted, or a read-only replica.
    /// - [`ErrorKind::Incompatible`] if the server is no Redis server, does not speak TLS, or is not in
    ///   cluster mode.
    /// - [`ErrorKind::InvalidValue`] for options out of bounds.
    pub fn open(options: &RedisOptions, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(options, namespace, Arc::new(SystemClock))
    }

    /// Opens a provider with the clock of its keepers: see [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let locks = Locks::new(options, namespace, clock)
            .and_then(|locks| locks.probe().map(|()| locks))
            .map_err(|error| error.with_backend(BACKEND))?;
        Ok(Self {
            locks: Arc::new(locks),
        })
    }
}

impl StoreInfo for RedisProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let Locks { options, keys, .. } = &*self.locks;
        // Programs may list them in another order.
        let sorted = |endpoints: &[Endpoint]| {
            let mut all: Vec<_> = endpoints.iter().map(Endpoint::to_string).collect();
            all.sort();
            all.join(",")
        };
        let namespace = ("namespace", keys.namespace());
        if !options.nodes.is_empty() {
            let start = format!("redis+cluster://{}", sorted(&options.nodes));
            return StoreUrl::location(&start, "", &[namespace]);
        }
        let database = options.database.to_string();
        let query = [("db", database.as_str()), namespace];
        match &options.remote.endpoint {
            Endpoint::Unix(path) => StoreUrl::location("unix:", &path.to_string_lossy(), &query),
            _ if !options.sentinels.is_empty() => {
                let start = format!("redis+sentinel://{}", sorted(&options.sentinels));
                StoreUrl::location(&start, &format!("/{}", options.primary), &query)
            }
            tcp => StoreUrl::location(&format!("redis://{tcp}"), "", &query),
        }
    }

    fn capabilities(&self) -> Capabilities {
        let attempt = self.locks.options.remote.attempt_time();
        let capabilities = Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::CrossHost)
            .with(Capability::Shared)
            .with(Capability::Permits)
            .with(Capability::Tickets)
            .with_max_permits(MAX_PERMITS)
            .with_batch(BATCH)
            .with_parts(self.locks.topology.parts());
        match self.locks.topology {
            Topology::OneServer(_) => capabilities
                .with(Capability::ProposedEpoch)
                .with_attempt_limit(attempt),
            // An attempt may have to ask for the map, too.
            Topology::Cluster(_) => capabilities.with_attempt_limit(2 * attempt),
        }
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.locks.shared.counts.usage())
    }

    /// Returns the run of the server, where `restart_grace` asks for it.
    fn server(&self) -> Option<String> {
        match &self.locks.topology {
            Topology::OneServer(node) => node.connector.run.lock().clone(),
            Topology::Cluster(_) => None,
        }
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.locks)
    }
}

impl Backend for RedisProvider {
    type Lease = RedisLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<RedisLease>>, Error> {
        self.locks.acquire(request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        self.locks.abandon(request);
    }

    /// Renews the lease, which does not depend on the process that has it.
    fn detach(
        &self,
        lease: &mut RedisLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        let renewal = RenewRequest::new(lease, ttl, deadline);
        match renewal.ask(|one| self.batch(one))? {
            Renewal::Renewed => id(&lease.text).map(Some).ok_or_else(senseless),
            Renewal::Lost => Ok(None),
        }
    }

    fn send_release(&self, lease: &mut RedisLease) -> ReleaseDispatch {
        let sent = self.locks.send_release(lease);
        sent.map_or(ReleaseDispatch::NotSent, ReleaseDispatch::Sent)
    }

    fn part(&self, request: &AcquireRequest<'_>) -> usize {
        self.locks.part(request)
    }

    fn batch(&self, operations: &mut [Operation<'_, RedisLease>]) {
        self.locks.batch(operations);
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.locks.shared.verifiers.add(verifier);
    }
}
