//! Many take turns while the network goes through all its faults.

use std::time::Duration;

use lockkeeper_testkit::{MySqlKind, Proxy};

use super::store::{settled, start};
use crate::rig::{self, PATIENCE};

pub(super) fn through_it_all(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    // One of them is not behind the proxy.
    let urls = [proxy.addr(), proxy.addr(), server.addr()].map(|addr| server.url_via(addr));
    let keepers = urls.map(|url| lockkeeper::open(&format!("{url}?ttl=1s&wait=1s")).unwrap());
    rig::through_it_all(&keepers, Duration::from_secs(1), &proxy);
    drop(keepers);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}
