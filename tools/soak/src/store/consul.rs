//! A Consul cluster of three servers, and a proxy before one of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{
    ConsulCluster, ConsulKind, ConsulOptions, ConsulServer, Proxy, TestServer,
};

use super::{Network, Store, StoreFault, with_timeouts};
use crate::faults::Lane;

pub(super) const CONSUL: ConsulKind = ConsulKind::Consul1_8;

/// An election takes up to two time-outs of a second. The new leader counts the ttl of each session again.
const ELECTION: Duration = Duration::from_secs(4);

pub(super) fn start(ttl: Duration) -> io::Result<Store> {
    let cluster = Arc::new(ConsulCluster::start(CONSUL, &ConsulOptions::new())?);
    let first = cluster.members().first().ok_or_else(none)?;
    let proxy = Proxy::new(first.addr())?;
    let through = TestServer::url_via(first, proxy.addr());
    let urls = [format!("{}/?", cluster.url(1)), through].map(|url| with_timeouts(&url));
    let faults = vec![
        on_leader("leader stopped", &cluster, |leader, lane| {
            leader.stop()?;
            lane.spell();
            leader.cont()
        }),
        on_leader("leader killed", &cluster, |leader, lane| {
            leader.kill();
            lane.spell();
            leader.restart()
        }),
        StoreFault::wiped("all keys deleted", &cluster),
    ];
    Ok(Store {
        grace: ELECTION + ttl,
        faults,
        network: Network::Proxy(Arc::new(proxy)),
        ..Store::new(urls.into(), vec![cluster])
    })
}

fn none() -> io::Error {
    io::Error::other("the cluster has no member")
}

fn on_leader(
    kind: &'static str,
    cluster: &Arc<ConsulCluster>,
    act: fn(&ConsulServer, &mut Lane<'_>) -> io::Result<()>,
) -> StoreFault {
    let cluster = Arc::clone(cluster);
    StoreFault::new(kind, move |lane| {
        let leader = cluster.members().get(cluster.leader(&[])?);
        act(leader.ok_or_else(none)?, lane)
    })
}
