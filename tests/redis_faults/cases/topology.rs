//! Replicas, and nodes of a cluster.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{
    AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LockKeeper, Released, WaitOutcome,
};
use lockkeeper_testkit::{Proxy, RedisKind, RedisOptions, RedisServer};

use super::Case;
use super::rig::{in_line, left, one_more_waits, open, refused, start};
use crate::rig::{PATIENCE, Waiting, Witness, until};

pub(super) const CASES: &[Case] = &[
    ("read_only_replica", read_only_replica),
    ("demoted_primary_is_left", demoted_primary_is_left),
    ("fail_over_is_waited_out", fail_over_is_waited_out),
    ("grants_wait_for_replicas", grants_wait_for_replicas),
    (
        "refused_wait_for_replicas_gives_back",
        refused_wait_for_replicas_gives_back,
    ),
    (
        "fail_over_while_replicas_are_waited_for",
        fail_over_while_replicas_are_waited_for,
    ),
    (
        "grant_of_a_demoted_primary_is_unknown",
        grant_of_a_demoted_primary_is_unknown,
    ),
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
    // One that does not even answer for itself.
    let lone = start(kind);
    for words in [
        &["CONFIG", "SET", "replica-serve-stale-data", "no"][..],
        &["REPLICAOF", "127.0.0.1", "1"],
    ] {
        lone.command(words).unwrap();
    }
    refused(&lone.url(), ErrorKind::Unavailable, &["lost its primary"]);
}

/// A holder and one who waits, by an address that can lead elsewhere; the replica knows of both.
fn contended_behind_a_proxy(
    old: &RedisServer,
    new: &RedisServer,
) -> (Proxy, LockKeeper, LockGuard, Waiting) {
    let proxy = Proxy::new(old.addr()).unwrap();
    let url = old.url_via(proxy.addr());
    let keeper = open(&url, "ttl=60s");
    let held = keeper.lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let waiting = one_more_waits(&url, "ttl=60s", PATIENCE, &witness);
    until("it stands in line there, too", || in_line(new, "a") == 1);
    (proxy, keeper, held, waiting)
}

/// A fail-over behind one address: connections that are open stay with the old primary.
fn demoted_primary_is_left(kind: RedisKind) {
    let (old, new) = with_replica(kind);
    let (proxy, keeper, held, waiting) = contended_behind_a_proxy(&old, &new);
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
    let (proxy, _keeper, held, waiting) = contended_behind_a_proxy(&old, &new);
    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let port = new.addr().port().to_string();
    old.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    let refusals = || {
        let errors = old.info("errorstats").unwrap();
        errors.get("errorstat_READONLY").cloned()
    };
    let error = held.renew().expect_err("a replica renews nothing");
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

fn refused_wait_for_replicas_gives_back(kind: RedisKind) {
    let server = start(kind);
    let forbid = |rule| {
        let words = ["ACL", "SETUSER", "default", rule];
        server.command(&words).unwrap();
    };
    forbid("-wait");
    let keeper = open(&server.url(), "replicas=1");
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("wait"), "{error}");
    assert_eq!(left(&server), Vec::<String>::new());
    // Nor can it be given back.
    forbid("-del");
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert_eq!(left(&server), ["lockkeeper:{default:a}"]);
}

/// Who was in line has its grant, and its replica does not acknowledge it.
fn fail_over_while_replicas_are_waited_for(kind: RedisKind) {
    let (primary, replica) = with_replica(kind);
    let url = primary.url();
    let held = open(&url, "ttl=60s").lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let keys = "ttl=60s&replicas=1&response_timeout=20s";
    let waiting = one_more_waits(&url, keys, PATIENCE, &witness);
    until("it stands in line", || in_line(&primary, "a") == 1);
    replica.stop().unwrap();
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    until("it waits for the replica", || waits_for_replicas(&primary));
    primary.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    until("it asks again and again", || {
        let errors = primary.info("errorstats").unwrap();
        let refusals = errors.get("errorstat_READONLY");
        let count = refusals.and_then(|count| count.strip_prefix("count=")?.parse().ok());
        count > Some(9)
    });
    primary.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    replica.cont().unwrap();
    assert!(waiting.answer().expect("it is granted in the end") > token);
}

fn waits_for_replicas(primary: &RedisServer) -> bool {
    let clients = primary.info("clients").unwrap();
    clients.get("blocked_clients").map(String::as_str) == Some("1")
}

/// It may have come to the new primary.
fn grant_of_a_demoted_primary_is_unknown(kind: RedisKind) {
    let (primary, replica) = with_replica(kind);
    let keeper = open(&primary.url(), "replicas=1&response_timeout=5s");
    let later = open(&primary.url(), "replicas=1");
    let demote = || primary.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    replica.stop().unwrap();
    let error = thread::scope(|scope| {
        let asking = scope.spawn(|| keeper.try_lock("a").unwrap_err());
        until("it waits for the replica", || waits_for_replicas(&primary));
        demote();
        asking.join().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert!(error.source().is_some(), "{error:?}");
    // One that takes writes would also take it back, and the new primary would not hear of that.
    primary.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    primary.command(&["FLUSHALL"]).unwrap();
    let writable = ["CONFIG", "SET", "replica-read-only", "no"];
    primary.command(&writable).unwrap();
    demote();
    let error = later.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert_eq!(left(&primary), ["lockkeeper:{default:a}"]);
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
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
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
