//! A ZooKeeper ensemble of three members, and a proxy before one of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{Proxy, TestServer, ZooKeeperEnsemble, ZooKeeperOptions, ZooKeeperServer};

use super::{Network, Store, StoreFault, ZOOKEEPER, with_timeouts};
use crate::faults::Lane;

/// An election may follow the last fault: after three seconds of a leader's silence, and for some seconds on a busy machine.
/// After it, every session lives for its whole time-out.
const GRACE: Duration = Duration::from_secs(6);

pub(super) fn start() -> io::Result<Store> {
    let ensemble = ZooKeeperEnsemble::start(ZOOKEEPER, &ZooKeeperOptions::new())?;
    let ensemble = Arc::new(ensemble);
    let first = ensemble.members().first().ok_or_else(none)?;
    let proxy = Proxy::new(first.addr())?;
    let through = TestServer::url_via(first, proxy.addr());
    let urls = [format!("{}/?", ensemble.url(1)), through].map(|url| with_timeouts(&url));
    let faults = vec![
        on_leader("leader stopped", &ensemble, |_, (_, leader), lane| {
            leader.stop()?;
            lane.spell();
            leader.cont()
        }),
        on_leader("leader killed", &ensemble, |_, (_, leader), lane| {
            leader.kill();
            lane.spell();
            leader.restart()
        }),
        on_leader(
            "leader cut off",
            &ensemble,
            |ensemble, (number, _), lane| cut_off(ensemble, number, lane),
        ),
        on_leader(
            "follower cut off",
            &ensemble,
            |ensemble, (number, _), lane| cut_off(ensemble, (number + 1) % 3, lane),
        ),
        StoreFault::wiped("all nodes deleted", &ensemble),
    ];
    Ok(Store {
        grace: GRACE,
        faults,
        network: Network::Proxy(Arc::new(proxy)),
        ..Store::new(urls.into(), vec![ensemble])
    })
}

fn none() -> io::Error {
    io::Error::other("the ensemble has no member")
}

/// The number of a member, and the member.
type Numbered<'a> = (usize, &'a ZooKeeperServer);

fn on_leader(
    kind: &'static str,
    ensemble: &Arc<ZooKeeperEnsemble>,
    act: fn(&ZooKeeperEnsemble, Numbered<'_>, &mut Lane<'_>) -> io::Result<()>,
) -> StoreFault {
    let ensemble = Arc::clone(ensemble);
    StoreFault::new(kind, move |lane| {
        let number = ensemble.leader(&[])?;
        let leader = ensemble.members().get(number).ok_or_else(none)?;
        act(&ensemble, (number, leader), lane)
    })
}

/// Cuts a member off from the others for a while.
fn cut_off(ensemble: &ZooKeeperEnsemble, member: usize, lane: &mut Lane<'_>) -> io::Result<()> {
    ensemble.cut_off(member);
    lane.spell();
    ensemble.join();
    Ok(())
}
