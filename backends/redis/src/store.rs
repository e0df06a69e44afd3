//! The parts that a provider, its leases and its listener share: the pool, and requests on it.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lockkeeper_core::{Clock, Error, ErrorKind, HostInstant, LeaseVerifiers, LockName, Mode};
use lockkeeper_remote::{Counts, Failure, LAST_ATTEMPT, Pool, PooledConn, no_time, senseless};
use redis::{Value, cmd};

use crate::bucket_keys;
use crate::connection::Connection;
use crate::connector::Connector;
use crate::failure::{accepted, from_primary, parse};
use crate::keys::{epoch_key, lock_key};
use crate::listener::Listener;
use crate::node::Node;
use crate::options::RedisOptions;
use crate::script::Script;
use crate::scripts;
use crate::server_clock::ServerClock;

/// The server checks only this often whether the time of a WAIT is over.
const TICK: Duration = Duration::from_millis(100);

/// What the stores of a cluster share, and what tells them apart.
#[derive(Default)]
pub(crate) struct Parts {
    pub(crate) counts: Arc<Counts>,
    pub(crate) verifiers: Arc<LeaseVerifiers>,
    pub(crate) node: Option<Node>,
}

pub(crate) struct Store {
    pub(crate) connector: Arc<Connector>,
    pub(crate) options: RedisOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) listener: Arc<Listener>,
    pub(crate) server_clock: ServerClock,
    /// The key of the last epoch of all names.
    pub(crate) epoch_key: String,
    /// The node that this store is, if it is one of a cluster.
    pub(crate) node: Option<Node>,
    pool: Pool<Connection>,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("server", &self.connector.server)
            .field("database", &self.options.database)
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
    pub(crate) fn new(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>, Error> {
        options.check()?;
        if !options.nodes.is_empty() {
            let text = "these options name a cluster, which is for RedisClusterProvider";
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        Self::of_parts(options, namespace, clock, Parts::default())
    }

    pub(crate) fn of_parts(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
        parts: Parts,
    ) -> Result<Arc<Self>, Error> {
        let connector = Connector::new(options, Arc::clone(&clock), parts.counts)?;
        let connector = Arc::new(connector);
        Ok(Arc::new_cyclic(|store| Self {
            listener: Listener::new(
                Arc::clone(&connector),
                namespace,
                parts.verifiers,
                Weak::clone(store),
            ),
            connector,
            options: options.clone(),
            namespace: namespace.to_owned(),
            clock,
            server_clock: ServerClock::default(),
            epoch_key: epoch_key(namespace),
            node: parts.node,
            pool: Pool::of(&options.remote),
        }))
    }

    pub(crate) fn key(&self, name: &LockName, mode: Mode) -> String {
        self.key_in(&self.namespace, name.as_str(), mode.is_permit())
    }

    /// Returns the key of a name, or of its permits, in a namespace.
    pub(crate) fn key_in(&self, namespace: &str, name: &str, of_permits: bool) -> String {
        match self.node {
            Some(_) => bucket_keys::lock_key(namespace, name, of_permits),
            None => lock_key(namespace, name, of_permits),
        }
    }

    /// Returns the error for the reply of a node that does not serve the key's slot.
    pub(crate) fn refusal_of_node(&self, reply: &Value, is_attempt: bool) -> Option<Error> {
        match (&self.node, reply) {
            (Some(node), Value::ServerError(error)) => node.refusal(error, is_attempt),
            _ => None,
        }
    }

    /// Returns whether another node of the cluster owns the slot of a key by now, as far as that can be asked `until` then.
    pub(crate) fn has_moved(&self, key: &str, until: HostInstant) -> bool {
        let until = until.min(self.clock.now() + self.options.remote.connect_timeout);
        self.node
            .as_ref()
            .is_some_and(|node| !node.owns(key, until))
    }

    /// Returns a reply to a request for one key that is no error.
    pub(crate) fn accepted(&self, reply: Value) -> Result<Value, Failure> {
        match self.refusal_of_node(&reply, false) {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => accepted(reply),
        }
    }

    /// Notes the server's time, as the reply to a request that was sent at `asked_at`. If the server's clock was set, it
    /// ends leases sooner or later than by the host's clock: then all are verified.
    pub(crate) fn note_time(&self, now: i64, asked_at: HostInstant) {
        if self.server_clock.note(now, asked_at, self.clock.now()) {
            self.listener.verifiers.verify_all();
        }
    }

    /// Returns the time that a single attempt may take.
    pub(crate) fn attempt(&self) -> Duration {
        self.options.remote.attempt_time()
    }

    /// Releases a lease in one attempt, and returns whether it was live. If the reply to the grant was
    /// lost, the lease is found by its owner.
    pub(crate) fn release(
        &self,
        key: &str,
        lease: &str,
        until: HostInstant,
    ) -> Result<bool, Error> {
        let answer = self.run(&scripts::RELEASE, key, lease, until);
        let released = answer.and_then(parse::<i64>);
        released
            .map(|found| found != 0)
            .map_err(Failure::into_error)
    }

    /// Removes a waiter from the queue of a name. If that fails, it is removed when its turn has come. The caller of an
    /// acquisition waits for this.
    pub(crate) fn leave(&self, key: &str, waiter: &str) {
        // Less than the tenth of a second within which a cancel returns.
        let until = self.clock.now() + LAST_ATTEMPT / 2;
        let _ = self.run(&scripts::LEAVE, key, waiter, until);
    }

    fn run(
        &self,
        script: &Script,
        key: &str,
        arg: &str,
        until: HostInstant,
    ) -> Result<Value, Failure> {
        let answer = self.with_connection(until, |connection, limit| {
            script.run(connection, key, &[arg], limit)
        });
        answer.and_then(|answer| self.accepted(answer))
    }

    /// Runs a script on this node, which takes over the slot of the key from another one, and returns whether the lease
    /// is live.
    pub(crate) fn ask_next(
        &self,
        script: &Script,
        key: &str,
        args: &[&str],
        until: HostInstant,
    ) -> Result<bool, Error> {
        let mut commands = cmd("ASKING").get_packed_command();
        commands.extend(script.by_code(&[key], args));
        let answer = self.with_connection(until, |connection, limit| {
            let began = self.clock.now();
            let answer = connection.exchange(&commands, 2, limit)?.pop();
            let answer = answer.ok_or_else(|| Failure::Unanswered(senseless()))?;
            let found: i64 = parse(self.accepted(from_primary(answer)?)?)?;
            if found > 0 && !self.acknowledged(connection, began, limit)? {
                return Err(Failure::Refused(self.few_replicas("request")));
            }
            Ok(found > 0)
        });
        answer.map_err(Failure::into_error)
    }

    /// Waits for the replicas if `replicas` asks for it, on the connection that wrote.
    pub(crate) fn acknowledged(
        &self,
        connection: &mut Connection,
        began: HostInstant,
        limit: Duration,
    ) -> Result<bool, Failure> {
        let wanted = self.options.replicas;
        if wanted == 0 {
            return Ok(true);
        }
        let limit = limit.saturating_sub(self.clock.now().saturating_since(began));
        // Zero would wait without an end. The reply has to travel, too.
        let longest = (limit.saturating_sub(TICK) * 3 / 4).max(Duration::from_millis(1));
        let mut wait = cmd("WAIT");
        wait.arg(wanted).arg(longest.as_millis());
        let limit = limit.max(longest + 2 * TICK);
        let came = connection.run(&wait, limit)?;
        Ok(matches!(came, Value::Int(came) if came >= i64::from(wanted)))
    }

    pub(crate) fn few_replicas(&self, what: &str) -> Error {
        let wanted = self.options.replicas;
        let few = match wanted {
            1 => "no replica".to_owned(),
            wanted => format!("fewer than {wanted} replicas"),
        };
        let then = match what {
            "grant" => ", so the lock was released again",
            _ => "",
        };
        let text = format!("{few} acknowledged the {what} in time{then}; see `replicas`");
        Error::new(ErrorKind::Unavailable, text)
    }

    /// Runs `work` on a connection of the pool: see [`PooledConn::run`](lockkeeper_remote::PooledConn::run).
    pub(crate) fn with_connection<T>(
        &self,
        until: HostInstant,
        work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.with_slot(until, Pool::checkout, work)
    }

    /// Runs `work` for a caller that holds nothing: it never uses the last connection of several, which
    /// renewals and releases need.
    pub(crate) fn with_spare_connection<T>(
        &self,
        until: HostInstant,
        work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.with_slot(until, Pool::checkout_spare, work)
    }

    fn with_slot<T>(
        &self,
        until: HostInstant,
        checkout: impl Fn(&Pool<Connection>, Duration) -> Option<PooledConn<Connection>>,
        mut work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let remote = &self.options.remote;
        let left = until.saturating_since(self.clock.now());
        if left.is_zero() {
            // The node has not failed.
            return Err(no_time());
        }
        let slot = checkout(&self.pool, left.min(remote.response_timeout));
        let mut slot = slot.ok_or_else(|| {
            let advice = ", or find what makes the server slow";
            let server = &self.connector.server;
            Failure::NotSent(server.exhausted(remote.pool_size, "", advice))
        })?;
        let connect = |limit| self.connector.connect(limit);
        let ran = slot.run(&*self.clock, until, connect, |connection, limit| {
            let result = work(connection, limit.min(remote.response_timeout));
            match &result {
                Err(Failure::Closed(_)) => self.listener.note_replica(),
                Ok(_) if std::mem::take(&mut connection.is_new) => self.listener.note_primary(),
                _ => {}
            }
            result
        });
        if let (Some(node), Err(failure)) = (&self.node, &ran)
            && !matches!(failure, Failure::Refused(_))
        {
            node.map.doubt(Some(&node.endpoint));
        }
        ran
    }

    /// Closes a connection that nothing uses at the moment.
    pub(crate) fn close_idle(&self) {
        if let Some(mut idle) = self.pool.try_checkout() {
            idle.connection = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::SystemClock;
    use lockkeeper_remote::Endpoint;

    use super::*;
    use crate::slot_map::SlotMap;

    #[test]
    fn node_is_not_suspect_for_a_request_whose_deadline_has_passed() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let options = RedisOptions::cluster("127.0.0.1", 1);
        let endpoint = Endpoint::tcp("127.0.0.1", 1);
        let map = Arc::new(SlotMap::new(&options, Arc::clone(&clock)));
        let parts = Parts {
            node: Some(Node {
                map: Arc::clone(&map),
                endpoint: endpoint.clone(),
            }),
            ..Parts::default()
        };
        let options = options.at(endpoint.clone());
        let store = Store::of_parts(&options, "shop", Arc::clone(&clock), parts).unwrap();
        store.release("key", "lease", clock.now()).unwrap_err();
        assert_eq!(map.rank(&endpoint), 0);
        let until = clock.now() + Duration::from_secs(60);
        store.release("key", "lease", until).unwrap_err();
        assert_eq!(map.rank(&endpoint), 1, "it refuses connections");
    }
}
