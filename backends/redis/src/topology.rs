//! The servers that keep the locks of a store: one server, or the primaries of a cluster, each with the slots that it owns.
//!
//! A single server, also one that sentinels name, is a cluster of one node that owns every key. The cluster client
//! and the sentinel client of the redis crate are not used, since they connect without a deadline.

pub(crate) mod connector;
pub(crate) mod listener;
pub(crate) mod node;
pub(crate) mod sentinels;
pub(crate) mod slot_map;
mod slots;
mod subscription;

use std::sync::Arc;

use lockkeeper_core::{CancelToken, Error, HostInstant};
use lockkeeper_remote::Endpoint;
use parking_lot::Mutex;

use self::node::{Node, Shared};
use self::slot_map::SlotMap;
use crate::options::RedisOptions;
use crate::wire::keys::slot;

pub(crate) use self::subscription::ask_for_flush_notice;

/// The number of nodes of a cluster that have their own batches and threads; further nodes share them. The map
/// lists a primary's replicas after it, so primaries are at regular distances. A prime number spreads these.
const PARTS: usize = 13;

pub(crate) enum Topology {
    OneServer(Arc<Node>),
    Cluster(Box<Cluster>),
}

/// The primaries of a cluster, each with its connections.
pub(crate) struct Cluster {
    options: RedisOptions,
    shared: Arc<Shared>,
    pub(crate) map: Arc<SlotMap>,
    /// The nodes that were needed so far.
    nodes: Mutex<Vec<Arc<Node>>>,
}

impl Topology {
    pub(crate) fn new(options: &RedisOptions, shared: Arc<Shared>) -> Result<Self, Error> {
        Ok(match options.nodes.is_empty() {
            true => Self::OneServer(Node::new(options, &shared, None)?),
            false => Self::Cluster(Box::new(Cluster {
                options: options.clone(),
                map: Arc::new(SlotMap::new(options, Arc::clone(&shared.clock))),
                shared,
                nodes: Mutex::default(),
            })),
        })
    }

    /// Returns the node that keeps a key: see [`SlotMap::owner`].
    pub(crate) fn owner(
        &self,
        key: &str,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Arc<Node>, Error> {
        match self {
            Self::OneServer(node) => Ok(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.node(&cluster.map.owner(slot(key), until, cancel)?),
        }
    }

    /// Returns the node that keeps a key by what is known, without asking anyone.
    pub(crate) fn known_owner(&self, key: &str) -> Option<Arc<Node>> {
        match self {
            Self::OneServer(node) => Some(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.node(&cluster.map.known_owner(slot(key))?).ok(),
        }
    }

    /// Returns the node at an endpoint, to which another node redirected a request.
    pub(crate) fn node_at(&self, endpoint: &Endpoint) -> Result<Arc<Node>, Error> {
        match self {
            Self::OneServer(node) => Ok(Arc::clone(node)),
            Self::Cluster(cluster) => cluster.node(endpoint),
        }
    }

    /// Asks the cluster again, and returns all nodes that keep locks.
    pub(crate) fn nodes(&self, until: HostInstant) -> Result<Vec<Arc<Node>>, Error> {
        match self {
            Self::OneServer(node) => Ok(vec![Arc::clone(node)]),
            Self::Cluster(cluster) => {
                let primaries = cluster.map.primaries(until)?;
                let nodes = primaries.iter().map(|(endpoint, _)| cluster.node(endpoint));
                nodes.collect()
            }
        }
    }

    /// Returns the number of parts of the store.
    pub(crate) fn parts(&self) -> usize {
        match self {
            Self::OneServer(_) => 1,
            Self::Cluster(_) => PARTS,
        }
    }

    /// Returns the number of the part that keeps a key.
    pub(crate) fn part(&self, key: &str) -> usize {
        match self {
            Self::OneServer(_) => 0,
            Self::Cluster(cluster) => cluster.map.number_of_owner(slot(key)),
        }
    }
}

impl Cluster {
    /// Returns a node, and drops nodes that no longer have a slot.
    fn node(&self, endpoint: &Endpoint) -> Result<Arc<Node>, Error> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.iter().find(|node| node.endpoint == *endpoint) {
            return Ok(Arc::clone(node));
        }
        let options = self.options.at(endpoint.clone());
        let node = Node::new(&options, &self.shared, Some(Arc::clone(&self.map)))?;
        let is_used = |node: &Arc<Node>| self.map.is_used(&node.endpoint);
        let (mut used, unused): (Vec<_>, Vec<_>) = nodes.drain(..).partition(is_used);
        used.push(Arc::clone(&node));
        *nodes = used;
        // The mutex is free here: the drop of a node closes its connections, which takes time.
        drop(nodes);
        drop(unused);
        Ok(node)
    }
}
