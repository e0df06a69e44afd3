//! Locks: attempts, renewals and releases, which are sent together to each node, and waits after a busy
//! attempt.
//!
//! If a release got no reply and the repeated release finds nothing, the outcome is unknown. The server may have
//! carried out the first release, or may have forgotten the lock. With `replicas`, a renewal without
//! acknowledgements is unknown, since a fail-over would end the lease early.
//!
//! While a slot of a cluster is moved, a script fails when it reads a key that has left its node. A script that
//! failed between deleting the string and making a sorted set freed a held lock. So an attempt first reads a key
//! that never exists, and fails there. Renewals and releases need one key, and follow `ASK`. Attempts need two
//! keys, which move one after the other, so they wait for the end of the move.
//!
//! Sharded publish and subscribe is not used. It needs a subscription for each bucket, which moves with its slot.
//! Redis 6.2 does not have it.

mod batch;
mod call;
mod exchange;
mod wait;

use std::fmt;
use std::sync::Arc;

use lockkeeper_core::{Clock, Error};

use crate::options::RedisOptions;
use crate::topology::Topology;
use crate::topology::node::Shared;
use crate::wire::keys::Keys;

/// The locks of one namespace in one store.
pub(crate) struct Locks {
    pub(crate) options: RedisOptions,
    pub(crate) keys: Keys,
    pub(crate) topology: Topology,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("options", &self.options)
            .field("namespace", &self.keys.namespace())
            .finish_non_exhaustive()
    }
}

impl Locks {
    pub(crate) fn new(
        options: &RedisOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        options.check()?;
        let shared = Arc::new(Shared {
            namespace: namespace.to_owned(),
            clock: Arc::clone(&clock),
            counts: Arc::default(),
            verifiers: Arc::default(),
            leave: wait::leave,
        });
        Ok(Self {
            options: options.clone(),
            keys: match options.nodes.is_empty() {
                true => Keys::of_one_server(namespace),
                false => Keys::of_cluster(namespace),
            },
            topology: Topology::new(options, Arc::clone(&shared))?,
            clock,
            shared,
        })
    }
}
