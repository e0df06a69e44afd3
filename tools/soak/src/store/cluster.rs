//! A cluster of three primaries with a replica each, all of them behind proxies.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{RedisCluster, TestServer};

use super::{Network, REDIS, ServerSettings, Store, StoreFault, WATCHED};
use crate::faults::Lane;
use crate::plan::Plan;

/// A primary that was silent for this long is replaced.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// How many buckets the names of a namespace are in.
const BUCKETS: u16 = 1_024;

/// `names` is how many names the workers lock.
pub(super) fn start(names: u32, settings: &ServerSettings) -> io::Result<Store> {
    let nodes = RedisCluster::start(REDIS, 1, NODE_TIMEOUT)?;
    let url = settings.with_keys(&TestServer::url(&nodes));
    let nodes = Arc::new(nodes);
    let [healthy, moved] = [(); 2].map(|()| Arc::clone(&nodes));
    let faults = vec![
        break_primary("primary stopped", &nodes, |nodes, lane, _, primary| {
            nodes.server(primary).stop()?;
            lane.spell();
            nodes.server(primary).cont()
        }),
        break_primary("primary killed", &nodes, |nodes, _, key, primary| {
            nodes.server(primary).kill();
            nodes.wait_for_fail_over(key, primary)?;
            nodes.server(primary).restart()
        }),
        StoreFault::new("primary stopped beside healthy ones", move |lane| {
            stop_beside_healthy(&healthy, names, lane)
        }),
        StoreFault::new("slot moved", move |lane| move_slot(&moved, lane)),
        StoreFault::wiped("all keys flushed", &nodes),
    ];
    Ok(Store {
        faults,
        // Each node is behind a proxy, and one of the proxies is broken at any time.
        telling_url: None,
        network: Network::Cluster(Arc::clone(&nodes)),
        ..Store::new(vec![url], vec![nodes])
    })
}

/// Breaks a primary, and waits until the cluster is whole again. A primary that takes over may not have heard of a
/// grant, and one that was replaced may grant until it hears of that.
fn break_primary(
    kind: &'static str,
    nodes: &Arc<RedisCluster>,
    act: fn(&RedisCluster, &mut Lane<'_>, &str, usize) -> io::Result<()>,
) -> StoreFault {
    let nodes = Arc::clone(nodes);
    StoreFault::new(kind, move |lane| {
        let key = any_key(lane);
        let (_, primary) = nodes.owner(&key, None)?;
        let journal = lane.journal;
        journal.forget(|| {
            act(&nodes, lane, &key, primary)?;
            nodes.wait_until_healthy()
        })
    })
}

/// Stops a primary that is not replaced meanwhile, beside which the names of the others must be granted. It forgets
/// nothing.
fn stop_beside_healthy(nodes: &RedisCluster, names: u32, lane: &mut Lane<'_>) -> io::Result<()> {
    let (_, stopped) = nodes.owner(&any_key(lane), None)?;
    let mut elsewhere = Vec::new();
    for name in 0..names {
        let slot = nodes.owner(&Plan::name(name), None)?.0;
        let key = format!("lockkeeper:bucket:{{default:{}}}", slot % BUCKETS);
        if nodes.owner(&key, None)?.1 != stopped {
            elsewhere.push(name);
        }
    }
    let set_all = |name: &str, value: &str| {
        let mut servers = nodes.servers();
        servers.try_for_each(|it| it.command(&["CONFIG", "SET", name, value]).map(drop))
    };
    set_all("cluster-replica-no-failover", "yes")?;
    // Else all nodes refuse when one is silent.
    set_all("cluster-require-full-coverage", "no")?;
    nodes.server(stopped).stop()?;
    if elsewhere.is_empty() {
        lane.pause_for(WATCHED);
    } else {
        lane.watch("a node that is stopped", Some(elsewhere), WATCHED);
    }
    nodes.server(stopped).cont()?;
    nodes.wait_until_healthy()?;
    set_all("cluster-require-full-coverage", "yes")?;
    set_all("cluster-replica-no-failover", "no")
}

/// Moves a slot to another primary, if the next key is at one.
fn move_slot(nodes: &RedisCluster, lane: &mut Lane<'_>) -> io::Result<()> {
    let (slot, from) = nodes.owner(&any_key(lane), None)?;
    let (_, to) = nodes.owner(&any_key(lane), None)?;
    if from == to {
        return Ok(());
    }
    nodes.begin_move(slot, from, to)?;
    lane.spell();
    nodes.end_move(slot, from, to)
}

/// Returns a key in the slot of some locks.
fn any_key(lane: &mut Lane<'_>) -> String {
    format!(
        "lockkeeper:bucket:{{default:{}}}",
        lane.choice(BUCKETS.into())
    )
}
