//! A ZooKeeper ensemble of three members.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{ZooKeeperEnsemble, ZooKeeperOptions};

use super::{Store, ZOOKEEPER, members};

/// An election may follow the last fault: after three seconds of a leader's silence, and for some seconds on a busy machine.
/// After it, every session lives for its whole time-out.
const GRACE: Duration = Duration::from_secs(6);

pub(super) fn start() -> io::Result<Store> {
    let ensemble = ZooKeeperEnsemble::start(ZOOKEEPER, &ZooKeeperOptions::new())?;
    let ensemble = Arc::new(ensemble);
    members::store(&ensemble, GRACE, None, members::cut_off(&ensemble))
}
