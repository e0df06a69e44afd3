//! The provider.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Capability, Clock, Error, ErrorKind, Grant,
    HostInstant, Released, RenewRequest, Renewal, StoreUrl, SystemClock, Usage,
};
use lockkeeper_remote::{Endpoint, Failure, nothing_granted, senseless};
use redis::{Value, cmd};

use crate::acquire::{acquire, owner};
use crate::connection::Connection;
use crate::failure::refused_command;
use crate::keys::Keys;
use crate::lease::{RedisLease, renew_batch};
use crate::scripts;
use crate::store::{Store, accepted, is_no_script, packed};
use crate::{BACKEND, RedisOptions};

/// How many renewals travel together.
const RENEW_BATCH: usize = 500;

/// Locks on one Redis or Valkey server, for all programs that reach it. Clones share their
/// connections.
///
/// Connections are opened when they are needed, at most [`RedisOptions::pool_size`] of them, and
/// kept. With the first acquisition that has to wait, a thread starts that listens, on a connection
/// of its own, for this provider's turn.
///
/// # Limits
/// - One server is the truth. When a replica takes over that had not heard of a grant yet, a name
///   can be granted twice; [`RedisOptions::replicas`] makes that rarer and not impossible. The
///   fencing token still tells the later grant, unless the new server's clock is behind the old
///   one's by more than the time in between.
/// - Servers in cluster mode are not supported, other than one node with all slots.
/// - Only the user's own key limits apply: a server that evicts keys (`maxmemory-policy` other than
///   `noeviction`) may evict locks.
/// - Connecting by a Unix socket takes no timeout: while the server is stopped and its backlog is
///   full, it blocks. Finding a host's addresses takes as long as the system's resolver does.
/// - Do not use it on both sides of a fork; open it after forking.
#[derive(Clone)]
pub struct RedisProvider {
    store: Arc<Store>,
}

impl RedisProvider {
    /// Connects, logs in and tries whether the user may do what a lock needs, within the connect
    /// timeout. Locks of two namespaces never meet.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when the server is out of reach, [`ErrorKind::PermissionDenied`]
    /// for a wrong password, a missing permission, a certificate that is not trusted or a read-only
    /// replica, [`ErrorKind::Incompatible`] for what is no Redis server or speaks no TLS,
    /// [`ErrorKind::InvalidValue`] for options out of bounds.
    pub fn open(options: &RedisOptions, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(options, namespace, Arc::new(SystemClock))
    }

    /// The same, on the clock that its keepers count on.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let placed = |error: Error| error.with_backend(BACKEND);
        let store = Store::new(options, namespace, clock).map_err(placed)?;
        probe(&store).map_err(placed)?;
        Ok(Self {
            store: Arc::new(store),
        })
    }
}

/// Runs every command that a lock needs.
fn probe(store: &Store) -> Result<(), Error> {
    let Keys { lock, epoch, line } = Keys::new(&store.namespace, "");
    let waiter = store.listener.probe();
    let (keys, args) = ([lock.as_str(), &epoch, &line], [waiter.as_str()]);
    let by_sha = packed("EVALSHA", &scripts::PROBE.sha, &keys, &args);
    let script = packed("EVAL", &scripts::PROBE.code, &keys, &args);
    let mut channel = Vec::new();
    for verb in ["SUBSCRIBE", "UNSUBSCRIBE"] {
        let mut command = cmd(verb);
        command.arg(store.listener.channel());
        command.write_packed_command(&mut channel);
    }
    let limit = store.options.remote.connect_timeout;
    let mut is_greeted = false;
    let ask = |connection: &mut Connection, limit| {
        let asked_at = store.clock.now();
        let answer = connection.ask(&by_sha, limit)?;
        if !is_no_script(&answer) {
            accepted(answer)?;
        }
        match connection.ask(&script, limit).and_then(accepted)? {
            Value::Int(now) => store.server_clock.update(now, asked_at),
            Value::Array(failed) => return Err(Failure::Refused(failed_command(&failed))),
            _ => return Err(Failure::Refused(senseless())),
        }
        for answer in connection.exchange(&channel, 2, limit)? {
            accepted(answer)?;
        }
        Ok(())
    };
    let probed = store.with_connection(limit, |connection, limit| {
        let asked = ask(connection, limit);
        is_greeted = connection.is_greeted;
        asked
    });
    probed.map_err(|failure| match failure {
        // Nothing was asked for that could have been granted.
        Failure::Unanswered(error) if error.kind() == ErrorKind::Unknown && is_greeted => {
            nothing_granted(Failure::Unanswered(error))
        }
        Failure::Unanswered(error) if error.kind() == ErrorKind::Unknown => Error::unreachable(
            format!(
                "{}; is it a Redis server? One that wants TLS does so, too: that is reached by rediss:",
                error.message()
            ),
        )
        .with_source(error),
        failure => failure.into_error(),
    })
}

fn failed_command(failed: &[Value]) -> Error {
    match failed {
        [Value::BulkString(command), Value::BulkString(said)] => refused_command(
            &String::from_utf8_lossy(command),
            &String::from_utf8_lossy(said),
        ),
        _ => senseless(),
    }
}

impl fmt::Debug for RedisProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisProvider")
            .field("server", &self.store.connector.server)
            .field("database", &self.store.options.database)
            .field("namespace", &self.store.namespace)
            .finish_non_exhaustive()
    }
}

impl Backend for RedisProvider {
    type Lease = RedisLease;

    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let options = &self.store.options;
        let (database, namespace) = (options.database.to_string(), &self.store.namespace);
        let query = [("db", database.as_str()), ("namespace", namespace.as_str())];
        match &options.remote.endpoint {
            Endpoint::Unix(path) => StoreUrl::location("unix:", &path.to_string_lossy(), &query),
            tcp => StoreUrl::location(&format!("redis://{tcp}"), "", &query),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::CrossHost)
            .with_renew_batch(RENEW_BATCH)
            .with_attempt_limit(self.store.attempt())
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.store.connector.counts.usage())
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.store)
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<RedisLease>>, Error> {
        acquire(&self.store, request)
    }

    /// Releases the grant of a cancelled request. A server that has not replied until the end of a
    /// wait is not asked once more.
    fn abandon(&self, request: &AcquireRequest<'_>) {
        if request.is_cancelled() {
            let keys = self.store.keys(request.name());
            self.store.give_back(&keys, &owner(request));
        }
    }

    fn renew(
        &self,
        lease: &mut RedisLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Renewal, Error> {
        lease.renew(&self.store, ttl, deadline)
    }

    fn release(&self, lease: &mut RedisLease, deadline: HostInstant) -> Result<Released, Error> {
        lease.release(&self.store, deadline)
    }

    fn renew_batch(&self, batch: &mut [RenewRequest<'_, RedisLease>]) {
        renew_batch(&self.store, batch);
    }
}
