//! The provider.

use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use lockkeeper_core::ErrorKind;
use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Capability, Clock, Error, Grant, HostInstant,
    LeaseVerifier, Operation, Released, RenewRequest, Renewal, StoreInfo, StoreUrl, SystemClock,
    Usage,
};
use lockkeeper_remote::{Endpoint, Failure, senseless};
use redis::{Value, pipe};

use crate::acquire::acquire;
use crate::batch::{batch, released};
use crate::connection::Connection;
use crate::failure::{accepted, parse, refused_command};
use crate::keys::lock_key;
use crate::lease::RedisLease;
use crate::owner::owner;
use crate::script::is_no_script;
use crate::scripts::PROBE;
use crate::store::Store;
use crate::{BACKEND, RedisOptions};

/// How many operations travel together.
const BATCH: usize = 500;
/// The largest limit of a semaphore. To find the smallest free slot, the script reads all permits that are
/// held, almost a microsecond each, and the server does nothing else meanwhile.
const MAX_PERMITS: u32 = 1_000;

/// Locks on one Redis or Valkey server, for all programs that connect to it. Clones share their
/// connections.
///
/// Connections are opened when they are needed, at most [`RedisOptions::pool_size`] of them, and kept. A thread
/// listens on a connection of its own. From the first acquisition that waits, it listens for releases by other
/// processes, and from 50 ms after the first grant for what ends leases. When the server goes, is flushed, or a lock
/// is taken away by [`Admin::force_release`], the keepers verify their leases at once. The notice of a flush needs
/// the permission `+client|tracking`; without it the next renewal notices. Another thread listens to a sentinel, if
/// there are any: see [`RedisOptions::sentinel`].
///
/// # Limits
/// - One server is the truth: that of the options, or the primary that sentinels name. When a replica takes over that had not heard of a grant yet, a name
///   can be granted twice; [`RedisOptions::replicas`] makes that rarer and not impossible. The
///   fencing token still tells the later grant, unless the new server's clock is behind the old
///   one's by more than the time in between.
/// - A cluster of several nodes is for [`RedisClusterProvider`](crate::RedisClusterProvider).
/// - A semaphore has at most 1,000 permits.
/// - Only the user's own key limits apply: a server that evicts keys (`maxmemory-policy` other than
///   `noeviction`) may evict locks.
/// - Connecting by a Unix socket takes no timeout: while the server is stopped and its backlog is
///   full, it blocks. Finding a host's addresses takes as long as the system's resolver does.
/// - Do not use it on both sides of a fork; open it after forking.
#[derive(Clone, Debug)]
pub struct RedisProvider {
    store: Arc<Store>,
}

impl RedisProvider {
    /// Connects, logs in and tries whether the user may do what a lock needs, within the connect
    /// timeout. Locks of two namespaces never meet.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`] if the server is out of reach.
    /// - [`ErrorKind::PermissionDenied`] for a wrong password, a missing permission, a certificate that is not
    ///   trusted, or a read-only replica.
    /// - [`ErrorKind::Incompatible`] for what is no Redis server or speaks no TLS.
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
        let store = Store::new(options, namespace, clock).and_then(|store| {
            // No lock has this key.
            let key = lock_key(namespace, "", false);
            probe(&store, &[&key], &store.epoch_key)?;
            Ok(store)
        });
        let store = store.map_err(|error| error.with_backend(BACKEND))?;
        Ok(Self { store })
    }
}

/// Runs every command that a lock needs, on the first of these keys and the epoch key.
pub(crate) fn probe(store: &Store, keys: &[&str], epoch_key: &str) -> Result<(), Error> {
    let waiter = store.listener.probe();
    let args = [waiter.as_str(), epoch_key];
    let mut subscribe = pipe();
    for channel in store.listener.channels() {
        subscribe.cmd("SUBSCRIBE").arg(&channel);
        subscribe.cmd("UNSUBSCRIBE").arg(&channel);
    }
    let subscribe = subscribe.get_packed_pipeline();
    let try_all = |connection: &mut Connection, limit| {
        let asked_at = store.clock.now();
        let answer = connection.ask(&PROBE.by_sha(keys, &args), limit)?;
        if !is_no_script(&answer) {
            store.accepted(answer)?;
        }
        let answer = connection.ask(&PROBE.by_code(keys, &args), limit);
        match answer.and_then(|answer| store.accepted(answer))? {
            Value::Int(now) => {
                store.note_time(now, asked_at);
            }
            failed => {
                let (command, said): (String, String) = parse(failed)?;
                return Err(Failure::Refused(refused_command(&command, &said)));
            }
        }
        let answers = connection.exchange(&subscribe, 4, limit)?;
        answers
            .into_iter()
            .try_for_each(|answer| accepted(answer).map(drop))
    };
    let until = store.clock.now() + store.options.remote.connect_timeout;
    let tried = store.with_connection(until, |connection, limit| {
        let tried = try_all(connection, limit);
        tried.map_err(|failure| Failure::Refused(connection.nothing_granted(failure)))
    });
    tried.map_err(Failure::into_error)
}

/// Returns what a store has on a single server and in a cluster alike.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities::new()
        .with(Capability::CrossProcess)
        .with(Capability::CrossHost)
        .with(Capability::Shared)
        .with(Capability::Permits)
        .with_max_permits(MAX_PERMITS)
        .with_batch(BATCH)
}

impl StoreInfo for RedisProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let options = &self.store.options;
        let (database, namespace) = (options.database.to_string(), &self.store.namespace);
        let query = [("db", database.as_str()), ("namespace", namespace.as_str())];
        let mut sentinels: Vec<_> = options.sentinels.iter().map(Endpoint::to_string).collect();
        // Programs may list them in another order.
        sentinels.sort();
        match &options.remote.endpoint {
            Endpoint::Unix(path) => StoreUrl::location("unix:", &path.to_string_lossy(), &query),
            _ if !sentinels.is_empty() => {
                let start = format!("redis+sentinel://{}", sentinels.join(","));
                StoreUrl::location(&start, &format!("/{}", options.primary), &query)
            }
            tcp => StoreUrl::location(&format!("redis://{tcp}"), "", &query),
        }
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
            .with(Capability::ProposedEpoch)
            .with_attempt_limit(self.store.attempt())
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.store.connector.counts.usage())
    }

    /// Returns the run of the server, where `restart_grace` asks for it.
    fn server(&self) -> Option<String> {
        self.store.connector.run.lock().clone()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.store)
    }
}

impl Backend for RedisProvider {
    type Lease = RedisLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<RedisLease>>, Error> {
        acquire(&self.store, request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        let key = self.store.key(request.name(), request.mode());
        let _ = self.store.release(&key, &owner(request), request.end());
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
        batch(&self.store, &mut operations);
        match operations {
            [Operation::Renew(it)] => it.answer.unwrap_or_else(|| Err(senseless())),
            _ => Err(senseless()),
        }
    }

    fn release(&self, lease: &mut RedisLease, deadline: HostInstant) -> Result<Released, Error> {
        // A server that is gone is not waited for as long as the lease would last.
        let longest = 2 * self.store.options.remote.response_timeout;
        let until = deadline.min(self.store.clock.now() + longest);
        let was_held = self.store.release(&lease.key, &lease.text, until);
        was_held.map(released)
    }

    fn batch(&self, operations: &mut [Operation<'_, RedisLease>]) {
        batch(&self.store, operations);
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store.listener.verifiers.add(verifier);
    }
}
