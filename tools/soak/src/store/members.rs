//! Clusters of three members that elect a leader, and a proxy before one of them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{Cluster, Member, NetworkedMember, Proxy, TestServer};

use super::{Network, Store, StoreFault, with_timeouts};
use crate::faults::Lane;

/// Makes the store of a cluster. `grace` is how much longer than its ttl a lease may outlive its holder. A leader that goes on
/// after it was stopped may end leases for `revokes`, although the next leader has renewed them; `None` if it never does.
pub(super) fn store<M: Member>(
    cluster: &Arc<Cluster<M>>,
    grace: Duration,
    revokes: Option<Duration>,
    further: Vec<StoreFault>,
) -> io::Result<Store> {
    let first = cluster.member(0);
    let proxy = Proxy::new(first.addr())?;
    let through = first.url_via(proxy.addr());
    let urls = [format!("{}/?", cluster.url(1)), through].map(|url| with_timeouts(&url));
    let mut faults = vec![
        on_leader("leader stopped", cluster, move |cluster, leader, lane| {
            let leader = cluster.member(leader);
            leader.stop()?;
            lane.spell();
            match revokes {
                Some(time) => lane.journal.forget_of(None, time, || leader.cont()),
                None => leader.cont(),
            }
        }),
        on_leader("leader killed", cluster, |cluster, leader, lane| {
            let leader = cluster.member(leader);
            leader.kill();
            lane.spell();
            leader.restart()
        }),
        StoreFault::wiped("all entries deleted", cluster),
    ];
    faults.extend(further);
    Ok(Store {
        grace,
        faults,
        network: Network::Proxy(Arc::new(proxy)),
        ..Store::new(
            urls.into(),
            vec![Arc::clone(cluster) as Arc<dyn TestServer>],
        )
    })
}

/// Returns the faults by which a member is cut off from the others for a while.
pub(super) fn cut_off<M: NetworkedMember>(cluster: &Arc<Cluster<M>>) -> Vec<StoreFault> {
    fn of<M: NetworkedMember>(
        cluster: &Cluster<M>,
        member: usize,
        lane: &mut Lane<'_>,
    ) -> io::Result<()> {
        cluster.cut_off(member);
        lane.spell();
        cluster.join();
        Ok(())
    }
    vec![
        on_leader("leader cut off", cluster, of),
        on_leader("follower cut off", cluster, |cluster, leader, lane| {
            of(cluster, (leader + 1) % 3, lane)
        }),
    ]
}

fn on_leader<M: Member>(
    kind: &'static str,
    cluster: &Arc<Cluster<M>>,
    act: impl Fn(&Cluster<M>, usize, &mut Lane<'_>) -> io::Result<()> + Send + Sync + 'static,
) -> StoreFault {
    let cluster = Arc::clone(cluster);
    StoreFault::new(kind, move |lane| {
        let leader = cluster.leader(&[])?;
        act(&cluster, leader, lane)
    })
}
