//! An etcd cluster of three members, and a proxy before one of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{EtcdCluster, EtcdOptions, EtcdServer, Proxy, TestServer};

use super::{ETCD, Network, Store, StoreFault, with_timeouts};
use crate::faults::Lane;

/// An election may follow the last fault, and takes up to two time-outs of a second. After it, every lease lives
/// for its ttl and another time-out.
const GRACE: Duration = Duration::from_secs(4);

pub(super) fn start() -> io::Result<Store> {
    let cluster = Arc::new(EtcdCluster::start(ETCD, &EtcdOptions::new())?);
    let first = cluster.members().first().ok_or_else(none)?;
    let proxy = Proxy::new(first.addr())?;
    let through = TestServer::url_via(first, proxy.addr());
    let urls = [format!("{}/?", cluster.url(1)), through].map(|url| with_timeouts(&url));
    let faults = vec![
        on_leader("leader stopped", &cluster, |_, (_, leader), lane| {
            leader.stop()?;
            lane.spell();
            leader.cont()
        }),
        on_leader("leader killed", &cluster, |_, (_, leader), lane| {
            leader.kill();
            lane.spell();
            leader.restart()
        }),
        on_leader("leader cut off", &cluster, |cluster, (number, _), lane| {
            cut_off(cluster, number, lane)
        }),
        on_leader(
            "follower cut off",
            &cluster,
            |cluster, (number, _), lane| cut_off(cluster, (number + 1) % 3, lane),
        ),
        StoreFault::wiped("all keys deleted", &cluster),
    ];
    Ok(Store {
        grace: GRACE,
        faults,
        network: Network::Proxy(Arc::new(proxy)),
        ..Store::new(urls.into(), vec![cluster])
    })
}

fn none() -> io::Error {
    io::Error::other("the cluster has no member")
}

/// The number of a member, and the member.
type Numbered<'a> = (usize, &'a EtcdServer);

fn on_leader(
    kind: &'static str,
    cluster: &Arc<EtcdCluster>,
    act: fn(&EtcdCluster, Numbered<'_>, &mut Lane<'_>) -> io::Result<()>,
) -> StoreFault {
    let cluster = Arc::clone(cluster);
    StoreFault::new(kind, move |lane| {
        let number = cluster.leader(&[])?;
        let leader = cluster.members().get(number).ok_or_else(none)?;
        act(&cluster, (number, leader), lane)
    })
}

/// Cuts a member off from the others for a while.
fn cut_off(cluster: &EtcdCluster, member: usize, lane: &mut Lane<'_>) -> io::Result<()> {
    cluster.cut_off(member);
    lane.spell();
    cluster.join();
    Ok(())
}
