//! The provider.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use lockkeeper_core::ErrorKind;
use lockkeeper_core::{
    AcquireRequest, Admin, AttemptRequest, Backend, Capabilities, Capability, Clock, Error, Grant,
    HostInstant, LeaseId, LeaseVerifier, Operation, ReleaseDispatch, SentRelease, StoreInfo,
    SystemClock, Usage,
};
use lockkeeper_remote::{Failure, senseless};

use crate::locks::batch::batch;
use crate::locks::tickets::detach;
use crate::locks::together::BATCH;
use crate::locks::wait::wait;
use crate::store::Store;
use crate::{BACKEND, EtcdLease, EtcdOptions};

/// The largest limit of a semaphore. Each attempt reads all its permits.
const MAX_PERMITS: u32 = 1_000;

/// Locks in one etcd cluster, for all programs that connect to it. Clones share their connections.
///
/// The cluster decides by majority, so the loss of a member neither loses a lock nor grants it twice. If a
/// member is down or has no leader, that is an outage for the requests that it had. The next requests go to
/// another member.
///
/// Connections are opened when they are needed, at most [`EtcdOptions::pool_size`] of them, and kept. A thread
/// watches on another connection. While callers wait, it watches for releases. From 50 ms after the first grant,
/// it watches for events that end leases. Another thread ends leases that are no longer renewed.
///
/// # Limits
/// - The ttl is a whole number of seconds. Its minimum is 1.5 times the election time-out of the cluster: 2 s by
///   default.
/// - After an election, the new leader extends every lease to its whole ttl and one election time-out more. So
///   the name of a dead holder becomes free that much later.
/// - A client whose lease has ended can still write to the data. No lock prevents that, as Jepsen showed for etcd
///   3.4.3. A guard is lost at its own deadline before the cluster frees the name, and the token lets the data
///   refuse a late write.
/// - A semaphore has at most 1,000 permits.
/// - Released keys of shared locks and permits stay in etcd's index until the history is compacted. Each later
///   request for the name visits them. If there are many, set `--auto-compaction-retention`.
/// - Finding a host's addresses takes as long as the system's resolver does.
/// - Do not use it on both sides of a fork; open it after forking.
#[derive(Clone, Debug)]
pub struct EtcdProvider {
    store: Arc<Store>,
}

impl EtcdProvider {
    /// Connects, logs in, and tries every request that a lock needs, within the connect timeout. Namespaces are
    /// separate.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`] if no member can be reached, or there is no leader.
    /// - [`ErrorKind::PermissionDenied`] for a wrong password, a missing permission, or a certificate that is not
    ///   trusted.
    /// - [`ErrorKind::Incompatible`] if a server is no etcd server or does not speak TLS, or if the members are of
    ///   two clusters.
    /// - [`ErrorKind::InvalidValue`] for options out of bounds.
    pub fn open(options: &EtcdOptions, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(options, namespace, Arc::new(SystemClock))
    }

    /// Opens a provider with the clock of its keepers: see [`open`](Self::open).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(
        options: &EtcdOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let store = Store::open(options, namespace, clock);
        let store = store.map_err(|error| error.with_backend(BACKEND))?;
        let store = Arc::new(store);
        Ok(Self { store })
    }
}

impl StoreInfo for EtcdProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let query = [("namespace", self.store.namespace.as_str())];
        self.store.options.remote.location(BACKEND, None, &query)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::CrossHost)
            .with(Capability::Shared)
            .with(Capability::Permits)
            .with(Capability::Tickets)
            .with_max_permits(MAX_PERMITS)
            .with_min_ttl(self.store.leases.min_ttl())
            .with_ttl_step(Duration::from_secs(1))
            .with_batch(BATCH)
            .with_attempt_limit(self.store.client.attempt())
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.store.client.connector.learned.counts.usage())
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.store)
    }
}

impl Backend for EtcdProvider {
    type Lease = EtcdLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<EtcdLease>>, Error> {
        if let Some(deadline) = request.deadline() {
            return wait(&self.store, request, deadline);
        }
        let (deadline, answer) = (request.end(), None);
        let deadline = deadline.min(request.now() + self.store.client.attempt());
        let attempt = AttemptRequest {
            request,
            deadline,
            answer,
        };
        let mut one = [Operation::Acquire(attempt)];
        batch(&self.store, &mut one);
        match one {
            [Operation::Acquire(it)] => it.answer.unwrap_or_else(|| Err(senseless())),
            _ => Err(senseless()),
        }
    }

    /// Deletes the keys of the request. Requests that arrive later bind keys only to a lease that is not kept
    /// alive.
    fn abandon(&self, request: &AcquireRequest<'_>) {
        let _ = self.store.forget(request, request.end());
    }

    /// Binds the key to a lease of its own.
    fn detach(
        &self,
        lease: &mut EtcdLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        detach(&self.store, lease, ttl, deadline).map_err(Failure::into_error)
    }

    fn send_release(&self, lease: &mut EtcdLease) -> ReleaseDispatch {
        match self.store.client.send(lease.delete()) {
            Some(owed) => ReleaseDispatch::Sent(SentRelease::new(owed)),
            None => ReleaseDispatch::NotSent,
        }
    }

    fn batch(&self, operations: &mut [Operation<'_, EtcdLease>]) {
        batch(&self.store, operations);
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store.listener.verifiers.add(verifier);
    }
}
