//! A node of a cluster that hangs.

use std::thread;
use std::time::Instant;

use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, LockGuard, LockKeeper, Released};
use lockkeeper_testkit::{Fault, RedisCluster, RedisKind, cases, until};

use super::Case;
use super::cluster::{KEY_OF_A, keys_at, start_without_replicas};
use super::store::{open, waiting_at};
use crate::common::{Told, cancel_after};

pub(super) const CASES: &[Case] = cases![
    cluster_node_that_hangs_delays_no_other,
    cluster_opens_beside_a_node_that_hangs,
    cluster_node_that_hangs_stops_no_acquisition_elsewhere,
    cluster_wait_is_cancelled_while_no_node_replies,
];

/// Locks names, and returns those that the node keeps, and the others.
fn lock_on_all(
    cluster: &RedisCluster,
    keeper: &LockKeeper,
    node: usize,
    count: usize,
) -> (Vec<LockGuard>, Vec<LockGuard>) {
    let names = (0..count).map(|number| format!("seat:{number:03}"));
    let guards: Vec<_> = names.map(|name| keeper.lock(&name).unwrap()).collect();
    let keys = keys_at(cluster, node);
    let is_there = |guard: &LockGuard| {
        let end = format!("{{{}}}", guard.name());
        keys.iter().any(|key| key.ends_with(&end))
    };
    let (there, others): (Vec<_>, Vec<_>) = guards.into_iter().partition(is_there);
    assert!(!there.is_empty() && !others.is_empty());
    (there, others)
}

/// The leases of the node that hangs are lost, and those of the other nodes are renewed meanwhile. A request to the node
/// that hangs has no answer before its leases end.
fn cluster_node_that_hangs_delays_no_other(kind: RedisKind) {
    let (cluster, hung) = start_without_replicas(kind);
    let keeper = open(&cluster.url(), "ttl=5s&response_timeout=60s");
    let (at_hung, others) = lock_on_all(&cluster, &keeper, hung, 30);
    cluster.server(hung).stop().unwrap();
    until("the leases of the node are lost", || {
        at_hung.iter().all(|guard| !guard.is_held())
    });
    let last = others.iter().map(LockGuard::remaining).max();
    let end = Instant::now() + last.unwrap();
    until("their leases would have ended", || Instant::now() > end);
    for guard in others {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
}

/// The node is the first one that is asked.
fn cluster_opens_beside_a_node_that_hangs(kind: RedisKind) {
    let (cluster, _) = start_without_replicas(kind);
    cluster.server(0).stop().unwrap();
    drop(open(
        &cluster.url(),
        "connect_timeout=6s&response_timeout=6s",
    ));
}

/// Forty threads wait for a name each at the node. If that were an outage of the whole store, a lock of another
/// name would wait until each thread has asked. That takes longer than the wait of the lock.
fn cluster_node_that_hangs_stops_no_acquisition_elsewhere(kind: RedisKind) {
    const WAITERS: usize = 40;
    let (cluster, hung) = start_without_replicas(kind);
    let url = format!("{}/?ttl=30s&response_timeout=1s&wait=20s", cluster.url());
    let (keeper, told) = Told::open(&url);
    let (at_hung, others) = lock_on_all(&cluster, &keeper, hung, 5 * WAITERS);
    assert!(at_hung.len() >= WAITERS);
    let other = others[0].name().clone();
    let names: Vec<_> = at_hung.iter().map(|it| it.name().clone()).collect();
    for guard in at_hung.into_iter().chain(others) {
        guard.release().unwrap();
    }
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    cluster.server(hung).stop().unwrap();
    thread::scope(|scope| {
        let (keeper, options) = (&keeper, &options);
        let waiting: Vec<_> = names
            .iter()
            .take(WAITERS)
            .map(|name| scope.spawn(move || keeper.acquire(name, options)))
            .collect();
        let locks = (0..3).map(|_| {
            until("the outage is told", || told.is_down());
            keeper.lock(&other)?.release()
        });
        let locks: Vec<_> = locks.collect();
        cancel.cancel();
        for waiting in waiting {
            let error = waiting.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        }
        for released in locks {
            assert_eq!(released.unwrap(), Released::Done);
        }
    });
}

/// The node of the name is gone, and the others do not say which node has its slot now. That may take longer than the limits
/// of this test.
fn cluster_wait_is_cancelled_while_no_node_replies(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let holder = open(&cluster.url(), "ttl=10m");
    let held = holder.lock("a").unwrap();
    let keeper = open(&cluster.url(), "connect_timeout=10m");
    cancel_after(&keeper, "a", AcquireOptions::new(), || {
        until("it waits", || {
            waiting_at(cluster.server(owner), KEY_OF_A) == 1
        });
        let others = (0..RedisCluster::PRIMARIES).filter(|at| *at != owner);
        let others: Vec<_> = others.map(|at| cluster.proxy(at)).collect();
        let asked = || others.iter().map(|it| it.counts().accepted).sum::<u64>();
        let before = asked();
        others.iter().for_each(|it| it.set(Fault::Dark));
        cluster.proxy(owner).refuse();
        until("another node is asked", || asked() > before);
    });
    for at in 0..RedisCluster::PRIMARIES {
        cluster.proxy(at).set(Fault::Pass);
    }
    cluster.proxy(owner).accept().unwrap();
    drop((held, holder, keeper));
}
