//! A node of a cluster that hangs.

use std::time::Instant;

use lockkeeper::{LockGuard, Released};
use lockkeeper_testkit::{RedisKind, until};

use super::Case;
use super::cluster::{keys_at, start_without_replicas};
use super::store::open;

pub(super) const CASES: &[Case] = &[(
    "cluster_node_that_hangs_delays_no_other",
    cluster_node_that_hangs_delays_no_other,
)];

/// The leases of the node that hangs are lost, and those of the other nodes are renewed meanwhile. A request to the node
/// that hangs has no answer before its leases end.
fn cluster_node_that_hangs_delays_no_other(kind: RedisKind) {
    let (cluster, hung) = start_without_replicas(kind);
    let keeper = open(&cluster.url(), "ttl=5s&response_timeout=60s");
    let names = (0..30).map(|number| format!("seat:{number:02}"));
    let guards: Vec<_> = names.map(|name| keeper.lock(&name).unwrap()).collect();
    let keys = keys_at(&cluster, hung);
    let is_at_hung = |guard: &LockGuard| {
        let end = format!("{{{}}}", guard.name());
        keys.iter().any(|key| key.ends_with(&end))
    };
    let (at_hung, others): (Vec<_>, Vec<_>) = guards.into_iter().partition(is_at_hung);
    assert!(!at_hung.is_empty() && !others.is_empty());
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
