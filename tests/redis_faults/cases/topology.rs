//! Replicas, and nodes of a cluster.

use std::time::{Duration, Instant};

use lockkeeper::{
    AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LockKeeper, LostWait, Released,
};
use lockkeeper_testkit::{Proxy, RedisKind, RedisOptions, RedisServer};

use super::Case;
use super::rig::{in_line, one_more_waits, open, refused, start};
use crate::rig::{PATIENCE, Witness, until};

pub(super) const CASES: &[Case] = &[
    ("read_only_replica", read_only_replica),
    ("demoted_primary_is_left", demoted_primary_is_left),
    ("fail_over_is_waited_out", fail_over_is_waited_out),
    ("grants_wait_for_replicas", grants_wait_for_replicas),
    ("renewals_wait_for_replicas", renewals_wait_for_replicas),
    ("cluster_mode", cluster_mode),
];

fn with_replica(kind: RedisKind) -> (RedisServer, RedisServer) {
    let primary = start(kind);
    let replica = RedisServer::start(kind, &RedisOptions::new().replica_of(&primary)).unwrap();
    replica.wait_for_sync().unwrap();
    (primary, replica)
}

/// The primary counts a replica in only when it has heard of it.
fn acknowledged(keeper: &LockKeeper) -> LockGuard {
    let mut guard = None;
    until("the replica acknowledges a grant", || {
        guard = keeper.try_lock("a").ok().flatten();
        guard.is_some()
    });
    guard.unwrap()
}

fn read_only_replica(kind: RedisKind) {
    let (_primary, replica) = with_replica(kind);
    let says = ["read-only replica", "primary"];
    refused(&replica.url(), ErrorKind::PermissionDenied, &says);
}

/// A fail-over behind one address: connections that are open stay with the old primary.
fn demoted_primary_is_left(kind: RedisKind) {
    let (old, new) = with_replica(kind);
    let proxy = Proxy::new(old.addr()).unwrap();
    let url = old.url_via(proxy.addr());
    let keeper = open(&url, "ttl=60s");
    let held = keeper.lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let waiting = one_more_waits(&url, "ttl=60s", PATIENCE, &witness);
    until("it stands in line there, too", || in_line(&new, "a") == 1);
    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    proxy.lead_to(new.addr());
    let port = new.addr().port().to_string();
    old.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    old.wait_for_sync().unwrap();
    held.renew().unwrap();
    drop(keeper.try_lock("b").unwrap().expect("it is free"));
    until("its listener has followed", || {
        let channels = new.command(&["PUBSUB", "CHANNELS"]).unwrap();
        channels.items().len() == 1
    });
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiting.answer().expect("it is granted there") > token);
}

/// The old primary is a replica before its address leads to the new one.
fn fail_over_is_waited_out(kind: RedisKind) {
    let (old, new) = with_replica(kind);
    let proxy = Proxy::new(old.addr()).unwrap();
    let url = old.url_via(proxy.addr());
    let keeper = open(&url, "ttl=60s");
    let held = keeper.lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let waiting = one_more_waits(&url, "ttl=60s", PATIENCE, &witness);
    until("it stands in line there, too", || in_line(&new, "a") == 1);
    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let port = new.addr().port().to_string();
    old.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let refusals = || {
        let errors = old.info("errorstats").unwrap();
        errors.get("errorstat_READONLY").cloned()
    };
    let error = held.renew().expect_err("nor does it renew");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let before = refusals();
    until("the waiter is refused", || refusals() != before);
    proxy.lead_to(new.addr());
    held.renew().unwrap();
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiting.answer().expect("it is granted there") > token);
}

fn grants_wait_for_replicas(kind: RedisKind) {
    let (primary, _replica) = with_replica(kind);
    drop(acknowledged(&open(&primary.url(), "replicas=1")));
    let keeper = open(&primary.url(), "replicas=2&response_timeout=200ms");
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("replicas"), "{error}");
    let rival = open(&primary.url(), "");
    drop(rival.try_lock("a").unwrap().expect("it was given back"));
}

fn renewals_wait_for_replicas(kind: RedisKind) {
    let (primary, replica) = with_replica(kind);
    let keeper = open(&primary.url(), "replicas=1&ttl=3s");
    let held = acknowledged(&keeper);
    let began = Instant::now();
    until("two ttls are over", || {
        began.elapsed() > Duration::from_secs(6)
    });
    assert!(held.is_held());
    let lease = LeasePolicy::Fixed {
        ttl: Duration::from_secs(60),
    };
    let fixed = AcquireOptions::new().lease(lease);
    let other = keeper.acquire("b", &fixed).unwrap().unwrap();
    replica.stop().unwrap();
    // One that the keeper does not renew, so that this is not its own renewal's answer.
    let mut refused = None;
    until("it has stopped", || {
        refused = other.renew().err();
        refused.is_some()
    });
    let error = refused.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("replicas"), "{error}");
    // The keeper's own renewals fare no better, though the primary has carried them out.
    assert_eq!(held.lost().wait(PATIENCE), LostWait::Lost);
    replica.cont().unwrap();
    until("it acknowledges again", || other.renew().is_ok());
    let next = keeper.try_lock_for("a", PATIENCE).unwrap();
    assert!(next.expect("it has ended").token() > held.token());
}

fn cluster_mode(kind: RedisKind) {
    let options = RedisOptions::new().config("cluster-enabled", ["yes"]);
    let server = RedisServer::start(kind, &options).unwrap();
    refused(&server.url(), ErrorKind::Unavailable, &["cluster"]);
    // One node that has all slots is as good as a single server, once it has found that out.
    server
        .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .unwrap();
    until("it serves", || lockkeeper::open(&server.url()).is_ok());
    let keeper = open(&server.url(), "");
    drop(keeper.lock("a").unwrap());
    // Now the name is another node's.
    let slot = ["CLUSTER", "KEYSLOT", "lockkeeper:{default:a}"];
    let slot = server.command(&slot).unwrap().int().unwrap().to_string();
    let second = RedisServer::start(kind, &options).unwrap();
    let id = second
        .command(&["CLUSTER", "MYID"])
        .unwrap()
        .text()
        .unwrap();
    let port = second.addr().port().to_string();
    server
        .command(&["CLUSTER", "MEET", "127.0.0.1", &port])
        .unwrap();
    until("they know each other", || {
        let nodes = server.command(&["CLUSTER", "NODES"]).unwrap();
        let nodes = nodes.text().unwrap();
        nodes.contains(&id) && !nodes.contains("handshake")
    });
    server
        .command(&["DEL", "lockkeeper:{default:a}:epoch"])
        .unwrap();
    for node in [&server, &second] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id])
            .unwrap();
    }
    for answer in [keeper.try_lock("a"), keeper.try_lock_for("a", PATIENCE)] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
        for word in ["cluster", "MOVED"] {
            assert!(error.to_string().contains(word), "no {word:?} in {error}");
        }
    }
    // The other one has that slot only, and not what is tried on opening.
    until("they agree", || {
        let info = second.command(&["CLUSTER", "INFO"]).unwrap();
        info.text().unwrap().contains("cluster_state:ok")
    });
    let url = second.url();
    refused(&url, ErrorKind::Incompatible, &["cluster", "MOVED"]);
}
