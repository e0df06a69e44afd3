//! One server: its connections, its clock, and who listens to it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Clock, Error, ErrorKind, HostInstant, LeaseVerifiers};
use lockkeeper_remote::{Counts, Endpoint, Failure, Pool, PooledConn, no_time};
use redis::{ServerError, Value};

use crate::connection::Connection;
use crate::options::RedisOptions;
use crate::topology::connector::Connector;
use crate::topology::listener::Listener;
use crate::topology::slot_map::SlotMap;
use crate::topology::slots::endpoint;
use crate::wire::failure::accepted;
use crate::wire::keys::slot;
use crate::wire::server_clock::ServerClock;

/// What the nodes of a store share.
pub(crate) struct Shared {
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) verifiers: Arc<LeaseVerifiers>,
    /// Removes a waiter that has gone from the queue of a key.
    pub(crate) leave: fn(&Node, key: &str, waiter: &str),
}

/// A server that keeps locks, alone or as a node of a cluster.
pub(crate) struct Node {
    pub(crate) endpoint: Endpoint,
    pub(crate) options: RedisOptions,
    pub(crate) connector: Arc<Connector>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) listener: Arc<Listener>,
    pub(crate) server_clock: ServerClock,
    /// The map of the cluster.
    pub(crate) map: Option<Arc<SlotMap>>,
    /// Whether the server has the script that releases, as far as its last reply tells.
    pub(crate) knows_release: AtomicBool,
    pool: Pool<Connection>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.listener.close();
    }
}

impl Node {
    /// A server with these options, which is one of a cluster if it has a map.
    pub(crate) fn new(
        options: &RedisOptions,
        shared: &Shared,
        map: Option<Arc<SlotMap>>,
    ) -> Result<Arc<Self>, Error> {
        let clock = Arc::clone(&shared.clock);
        let connector = Connector::new(options, Arc::clone(&clock), &shared.counts)?;
        let connector = Arc::new(connector);
        let verifiers = Arc::clone(&shared.verifiers);
        let leave = shared.leave;
        Ok(Arc::new_cyclic(|node| {
            let node = node.clone();
            let leave = move |key: &str, waiter: &str| {
                if let Some(node) = node.upgrade() {
                    leave(&node, key, waiter);
                }
            };
            let leave = Box::new(leave);
            Self {
                endpoint: options.remote.endpoint.clone(),
                options: options.clone(),
                listener: Listener::new(
                    Arc::clone(&connector),
                    &shared.namespace,
                    verifiers,
                    leave,
                ),
                connector,
                clock,
                server_clock: ServerClock::default(),
                map,
                knows_release: AtomicBool::new(false),
                pool: Pool::of(&options.remote),
            }
        }))
    }

    /// Returns whether another node of the cluster owns the slot of a key by now, as far as that can be asked `until` then or
    /// a cancel.
    pub(crate) fn has_lost(
        &self,
        key: &str,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> bool {
        let until = until.min(self.clock.now() + self.options.remote.connect_timeout);
        let is_own = |owner: Endpoint| owner == self.endpoint;
        let map = self.map.as_ref();
        map.is_some_and(|map| !map.owner(slot(key), until, cancel).is_ok_and(is_own))
    }

    /// Returns a reply to a request for one key that is no error.
    pub(crate) fn accepted(&self, reply: Value) -> Result<Value, Failure> {
        match self.refusal(&reply, false) {
            Some(refusal) => Err(Failure::Refused(refusal.error)),
            None => accepted(reply),
        }
    }

    /// Returns what it means that the node does not serve the key's slot, and notes in the map what it says. `None` for
    /// other replies, and for a single server.
    pub(crate) fn refusal(&self, reply: &Value, is_attempt: bool) -> Option<Refusal> {
        match (&self.map, reply) {
            (Some(map), Value::ServerError(error)) => self.refusal_of(map, error, is_attempt),
            _ => None,
        }
    }

    fn refusal_of(&self, map: &SlotMap, error: &ServerError, is_attempt: bool) -> Option<Refusal> {
        let (code, details) = (error.code(), error.details().unwrap_or_default());
        let mut next = None;
        let (kind, text) = match (code, self.redirect(details)) {
            ("MOVED", Some((slot, owner))) => {
                map.learn(slot, owner);
                (
                    ErrorKind::Unavailable,
                    "another node of the cluster owns the slot of this name",
                )
            }
            ("ASK", Some((slot, node))) => {
                map.note_move(slot, node.clone());
                next = Some(node);
                (ErrorKind::Unavailable, MOVING)
            }
            ("MOVED" | "CLUSTERDOWN", _) => {
                map.doubt(Some(&self.endpoint));
                (
                    ErrorKind::Unavailable,
                    "the cluster has no primary for the slot of this name at the moment",
                )
            }
            ("TRYAGAIN", _) => (ErrorKind::Unavailable, MOVING),
            // A script that was ended where the slot is moved. An attempt has done nothing by then.
            _ if details.contains("non local key") => {
                let kind = match is_attempt {
                    true => ErrorKind::Unavailable,
                    false => ErrorKind::Unknown,
                };
                (kind, MOVING)
            }
            _ => return None,
        };
        let is_moving = text == MOVING && kind == ErrorKind::Unavailable;
        let text = format!("{text} (the server says: {code} {details})");
        let error = match is_moving {
            true => Error::name_unavailable(text),
            false => Error::new(kind, text),
        };
        Some(Refusal { error, next })
    }

    /// Reads `SLOT HOST:PORT`. Without a host it is the same as this node's.
    fn redirect(&self, details: &str) -> Option<(u16, Endpoint)> {
        let mut words = details.split(' ');
        let slot = words.next()?.parse().ok()?;
        let (host, port) = words.next()?.rsplit_once(':')?;
        let to = endpoint(host, port.parse().ok()?, &self.endpoint)?;
        Some((slot, to))
    }

    /// Notes the server's time, as the reply to a request that was sent at `asked_at`. If the server's clock was set, it
    /// ends leases sooner or later than by the host's clock: then all are verified.
    pub(crate) fn note_time(&self, now: i64, asked_at: HostInstant) {
        if self.server_clock.note(now, asked_at, self.clock.now()) {
            self.listener.verifiers.verify_all();
        }
    }

    /// Runs `work` on a connection of the pool: see [`PooledConn::run`](lockkeeper_remote::PooledConn::run).
    pub(crate) fn with_connection<T>(
        &self,
        until: HostInstant,
        work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.run_on(self.checkout(until, false, None)?, until, None, work)
    }

    /// Returns a slot of the pool; `is_spare` leaves the last one of several to others.
    pub(crate) fn checkout(
        &self,
        until: HostInstant,
        is_spare: bool,
        cancel: Option<&CancelToken>,
    ) -> Result<PooledConn<Connection>, Failure> {
        let remote = &self.options.remote;
        let limit = self.left(until)?.min(remote.response_timeout);
        let slot = match is_spare {
            true => self.pool.checkout_spare(limit, cancel),
            false => self.pool.checkout(limit, cancel),
        };
        let advice = ", or find what makes the server slow";
        slot.ok_or_else(|| self.pool.exhausted("", advice))
    }

    /// Returns the time until `until`. Without any, the node has not failed.
    fn left(&self, until: HostInstant) -> Result<Duration, Failure> {
        match until.saturating_since(self.clock.now()) {
            Duration::ZERO => Err(no_time()),
            left => Ok(left),
        }
    }

    /// Runs `work` on the connection of a slot.
    pub(crate) fn run_on<T>(
        &self,
        mut slot: PooledConn<Connection>,
        until: HostInstant,
        cancel: Option<&CancelToken>,
        mut work: impl FnMut(&mut Connection, Duration) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.left(until)?;
        let remote = &self.options.remote;
        let connector = Arc::clone(&self.connector);
        let connect = move |limit| connector.connect(limit);
        let ran = slot.run(&*self.clock, until, cancel, connect, |connection, limit| {
            let map = self.map.as_ref().filter(|_| connection.is_new);
            let trial = map.map(|map| (map, map.doubts()));
            let result = work(connection, limit.min(remote.response_timeout));
            match &result {
                Err(Failure::Closed(_)) => self.listener.note_replica(),
                Ok(_) if connection.is_new => {
                    self.listener.note_primary();
                    // The reply may say that the cluster is down.
                    let is_suspect =
                        |(map, doubts): (&Arc<SlotMap>, _)| map.trust(&self.endpoint, doubts);
                    connection.is_new = trial.is_some_and(is_suspect);
                }
                _ => {}
            }
            result
        });
        // A cancel says nothing of the node.
        if let (Some(map), Err(failure)) = (&self.map, &ran)
            && !matches!(failure, Failure::Refused(_))
            && !cancel.is_some_and(CancelToken::is_cancelled)
        {
            map.doubt(Some(&self.endpoint));
        }
        ran
    }

    /// Sends a release on an idle connection, without waiting for anything. Returns the connection; `None` if it was not
    /// sent.
    pub(crate) fn send_release(&self, packed: &[u8]) -> Option<PooledConn<Connection>> {
        let mut slot = self.pool.try_checkout()?;
        let mut connection = slot.connection.take()?;
        // After an error the connection is closed.
        let is_sent = connection.send_release(packed).ok()?;
        slot.connection = Some(connection);
        is_sent.then_some(slot)
    }

    /// Closes a connection that nothing uses at the moment.
    pub(crate) fn close_idle(&self) {
        if let Some(mut idle) = self.pool.try_checkout() {
            idle.connection = None;
        }
    }
}

/// That a node of a cluster does not serve a request, and why.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    /// The node to which this very request has to be sent. Without it, the key may still be at the owner of the slot, and
    /// another node would take the lease for lost.
    pub(crate) next: Option<Endpoint>,
}

const MOVING: &str = "the slot of this name is being moved to another node of the cluster; names in it are granted when that has ended";

#[cfg(test)]
mod tests {
    use lockkeeper_core::SystemClock;

    use super::*;

    #[test]
    fn node_is_not_suspect_for_a_request_whose_deadline_has_passed() {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let shared = Shared {
            namespace: "shop".to_owned(),
            clock: Arc::clone(&clock),
            counts: Arc::default(),
            verifiers: Arc::default(),
            leave: |_, _, _| {},
        };
        let options = RedisOptions::cluster("127.0.0.1", 1);
        let map = Arc::new(SlotMap::new(&options, Arc::clone(&clock)));
        let node = Node::new(&options, &shared, Some(Arc::clone(&map))).unwrap();
        let ask = |until| node.with_connection(until, |_, _| Ok(())).unwrap_err();
        ask(clock.now());
        assert_eq!(map.rank(&node.endpoint), 0);
        ask(clock.now() + Duration::from_secs(60));
        assert_eq!(map.rank(&node.endpoint), 1, "it refuses connections");
    }
}
