//! An etcd cluster of three members.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{EtcdCluster, EtcdOptions};

use super::{ETCD, Store, members};

/// An election may follow the last fault, and takes up to two time-outs of a second. After it, every lease lives
/// for its ttl and another time-out.
const GRACE: Duration = Duration::from_secs(4);

/// How long a leader that was stopped may end leases after it goes on. On 3.5.30 they ended within 0.1 s on a busy machine.
const REVOKES: Duration = Duration::from_secs(1);

pub(super) fn start() -> io::Result<Store> {
    let cluster = Arc::new(EtcdCluster::start(ETCD, &EtcdOptions::new())?);
    members::store(&cluster, GRACE, Some(REVOKES), members::cut_off(&cluster))
}
