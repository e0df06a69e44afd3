//! A cluster: one store for each primary, and the way of each request to the primary that owns its slot.
//!
//! This is not the cluster client of the redis crate, which connects without a deadline.
//!
//! While a slot is moved, a script fails in its middle when it asks for a key that is gone from its node. One that
//! had deleted the string to make a sorted set of it freed a held lock. So an attempt first asks for a key that
//! never exists, and fails there. Renewals and releases need one key, and follow `ASK`. Attempts need two keys,
//! which move one after the other, so they wait for the end of the move.
//!
//! There is no sharded publish and subscribe: it needs a subscription for each bucket, which moves with its slot,
//! and Redis 6.2 does not have it.

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{
    AcquireRequest, Clock, Error, ErrorKind, Grant, HostInstant, LeaseVerifiers,
};
use lockkeeper_remote::{Counts, Endpoint};
use parking_lot::Mutex;

use crate::acquire::acquire;
use crate::bucket_keys::{lock_key, slot};
use crate::lease::RedisLease;
use crate::node::{Node, asked_node};
use crate::options::RedisOptions;
use crate::scripts::RELEASE;
use crate::slot_map::SlotMap;
use crate::store::{Parts, Store};

/// How many nodes a request may be sent to one after the other. Two nodes that each name the other one are asked
/// no longer.
pub(crate) const MAX_NODES: usize = 5;

pub(crate) struct Cluster {
    pub(crate) options: RedisOptions,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) verifiers: Arc<LeaseVerifiers>,
    pub(crate) map: Arc<SlotMap>,
    /// The stores that were needed so far.
    stores: Mutex<Vec<Arc<Store>>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("nodes", &self.options.nodes)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// A node that a request is sent to.
#[derive(Clone, PartialEq)]
pub(crate) enum Target {
    Owner(Endpoint),
    /// The node that takes the slot over, to which the owner's ASK reply has sent the request.
    Next(Endpoint),
}

impl Target {
    pub(crate) fn endpoint(&self) -> &Endpoint {
        let (Self::Owner(endpoint) | Self::Next(endpoint)) = self;
        endpoint
    }
}

impl Cluster {
    pub(crate) fn new(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        if options.nodes.is_empty() {
            let text = "these options name a single server; make them by RedisOptions::cluster, or use RedisProvider";
            return Err(Error::new(ErrorKind::InvalidValue, text));
        }
        Ok(Self {
            map: Arc::new(SlotMap::new(options, Arc::clone(&clock))),
            options: options.clone(),
            namespace: namespace.to_owned(),
            clock,
            counts: Arc::default(),
            verifiers: Arc::default(),
            stores: Mutex::default(),
        })
    }

    pub(crate) fn key(&self, request: &AcquireRequest<'_>) -> String {
        let (name, of_permits) = (request.name().as_str(), request.mode().is_permit());
        lock_key(&self.namespace, name, of_permits)
    }

    /// Returns the store at a node, and drops those of nodes that have no slot any more.
    pub(crate) fn store(&self, endpoint: &Endpoint) -> Result<Arc<Store>, Error> {
        let is_at = |store: &Arc<Store>, endpoint: &Endpoint| {
            store
                .node
                .as_ref()
                .is_some_and(|node| node.endpoint == *endpoint)
        };
        let mut stores = self.stores.lock();
        if let Some(store) = stores.iter().find(|store| is_at(store, endpoint)) {
            return Ok(Arc::clone(store));
        }
        let is_used = |store: &Arc<Store>| {
            let node = store.node.as_ref();
            node.is_some_and(|node| self.map.is_used(&node.endpoint))
        };
        let parts = Parts {
            counts: Arc::clone(&self.counts),
            verifiers: Arc::clone(&self.verifiers),
            node: Some(Node {
                map: Arc::clone(&self.map),
                endpoint: endpoint.clone(),
            }),
        };
        let options = self.options.at(endpoint.clone());
        let store = Store::of_parts(&options, &self.namespace, Arc::clone(&self.clock), parts)?;
        let (mut used, unused): (Vec<_>, Vec<_>) = stores.drain(..).partition(is_used);
        used.push(Arc::clone(&store));
        *stores = used;
        // A store closes its connections when it is dropped, which must not be waited for.
        drop(stores);
        drop(unused);
        Ok(store)
    }

    /// Acquires a name at the node that owns its slot.
    pub(crate) fn acquire(
        &self,
        request: &AcquireRequest<'_>,
    ) -> Result<Option<Grant<RedisLease>>, Error> {
        let until = request.end();
        let key = self.key(request);
        let mut target = Target::Owner(self.map.owner(slot(&key), until)?);
        for _ in 1..MAX_NODES {
            let result = acquire(&*self.store(target.endpoint())?, request);
            match self.further(slot(&key), &target, result.as_ref().err(), until) {
                Some(next @ Target::Owner(_)) => target = next,
                _ => return result,
            }
        }
        acquire(&*self.store(target.endpoint())?, request)
    }

    /// Releases a lease, and returns whether it was live.
    pub(crate) fn release(&self, key: &str, text: &str, until: HostInstant) -> Result<bool, Error> {
        let mut target = Target::Owner(self.map.owner(slot(key), until)?);
        let release = |target: &Target| {
            let store = self.store(target.endpoint())?;
            match target {
                Target::Owner(_) => store.release(key, text, until),
                Target::Next(_) => store.ask_next(&RELEASE, key, &[text], until),
            }
        };
        for _ in 1..MAX_NODES {
            let result = release(&target);
            match self.further(slot(key), &target, result.as_ref().err(), until) {
                Some(next) => target = next,
                None => return result,
            }
        }
        release(&target)
    }

    /// Returns the node to try after this one, if a request has failed there and nothing came of it.
    pub(crate) fn further(
        &self,
        slot: u16,
        tried: &Target,
        error: Option<&Error>,
        until: HostInstant,
    ) -> Option<Target> {
        let error = error.filter(|error| error.kind() == ErrorKind::Unavailable)?;
        // Without an ASK reply to this very request, the key may still be at the owner, and the next node would take the
        // lease for lost.
        if let (Target::Owner(_), Some(next)) = (tried, asked_node(error)) {
            return Some(Target::Next(next.clone()));
        }
        let owner = Target::Owner(self.map.owner(slot, until).ok()?);
        (owner != *tried).then_some(owner)
    }
}
