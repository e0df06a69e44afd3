//! A Consul cluster of three servers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{ConsulCluster, ConsulKind, ConsulOptions};

use super::{Store, members};

pub(super) const CONSUL: ConsulKind = ConsulKind::Consul1_8;

/// An election takes up to two time-outs of a second. The new leader counts the ttl of each session again.
const ELECTION: Duration = Duration::from_secs(4);

pub(super) fn start(ttl: Duration) -> io::Result<Store> {
    let cluster = Arc::new(ConsulCluster::start(CONSUL, &ConsulOptions::new())?);
    members::store(&cluster, ELECTION + ttl, None, Vec::new())
}
