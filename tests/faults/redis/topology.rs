//! Replicas, and nodes of a cluster.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{
    AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LockKeeper, Released, WaitOutcome,
};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer, cases, until};

use super::Case;
use super::store::{keys_left, listening, open, start, start_waiter};
use crate::common::{Keepers as _, WAIT_LIMIT, Waiter, Witness, refused};

pub(super) const CASES: &[Case] = cases![
    read_only_replica,
    keeper_leaves_demoted_primary,
    fail_over_while_waiting,
    grants_need_replicas,
    wait_for_replicas_ends_by_the_deadline,
    refused_wait_command_releases,
    fail_over_before_replicas_acknowledge,
    grant_of_a_demoted_primary_is_unknown,
    renewals_need_replicas,
    cluster_nodes,
];

fn with_replica(kind: RedisKind) -> (RedisServer, RedisServer) {
    let primary = start(kind);
    let replica = RedisServer::start(kind, &RedisOptions::new().replica_of(&primary)).unwrap();
    replica.wait_for_sync().unwrap();
    (primary, replica)
}

/// Locks `a`, once the primary knows that the replica follows it.
fn lock_acknowledged(keeper: &LockKeeper) -> LockGuard {
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
    // A replica that refuses all commands since its primary is gone.
    let lone = start(kind);
    for words in [
        &["CONFIG", "SET", "replica-serve-stale-data", "no"][..],
        &["REPLICAOF", "127.0.0.1", "1"],
    ] {
        lone.command(words).unwrap();
    }
    refused(&lone.url(), ErrorKind::Unavailable, &["lost its primary"]);
}

/// Starts a holder and a waiter behind a proxy; the replica has the data of both.
fn contended_behind_a_proxy(
    old: &RedisServer,
    new: &RedisServer,
) -> (Proxy, LockKeeper, LockGuard, Waiter) {
    let proxy = Proxy::new(old.addr()).unwrap();
    let url = old.url_via(proxy.addr());
    let keeper = open(&url, "ttl=60s");
    let held = keeper.lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let waiting = start_waiter(&url, "ttl=60s", WAIT_LIMIT, &witness);
    until("the replica has the waiter's entry, too", || {
        new.queue_length("a") == 1
    });
    (proxy, keeper, held, waiting)
}

/// The proxy leads new connections to the new primary; open ones stay with the old primary.
fn keeper_leaves_demoted_primary(kind: RedisKind) {
    let (old, new) = with_replica(kind);
    let (proxy, keeper, held, waiting) = contended_behind_a_proxy(&old, &new);
    new.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    proxy.lead_to(new.addr());
    let port = new.addr().port().to_string();
    old.command(&["REPLICAOF", "127.0.0.1", &port]).unwrap();
    old.wait_for_sync().unwrap();
    held.renew().unwrap();
    drop(keeper.try_lock("b").unwrap().expect("it is free"));
    until("the holder and the waiter listen there", || {
        listening(&new) == 2
    });
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiting.answer().expect("the new primary grants it") > token);
}

/// The old primary becomes a replica before the proxy leads to the new primary.
fn fail_over_while_waiting(kind: RedisKind) {
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
    assert!(waiting.answer().expect("the new primary grants it") > token);
}

fn grants_need_replicas(kind: RedisKind) {
    let (primary, _replica) = with_replica(kind);
    drop(lock_acknowledged(&open(&primary.url(), "replicas=1")));
    let keeper = open(&primary.url(), "replicas=2&response_timeout=2s");
    // A busy machine may leave no time for the release, and then that is unknown.
    until("the missing replicas are the reason", || {
        let answer = keeper.try_lock("a").map(|guard| guard.is_some());
        assert_ne!(answer.as_ref().ok(), Some(&true));
        answer.is_err_and(|error| error.to_string().contains("replicas"))
    });
    let rival = open(&primary.url(), "");
    let released = rival.try_lock_for("a", WAIT_LIMIT).unwrap();
    drop(released.expect("it was released"));
}

/// The grant comes late, and then the wait for the replicas and the release would take longer than there is time.
fn wait_for_replicas_ends_by_the_deadline(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = open(&server.url_via(proxy.addr()), "replicas=1&outage=fail");
    proxy.set(Fault::DelayReplies(Duration::from_millis(60)));
    let wait = Duration::from_millis(50);
    // On a busy machine, each thread may be late.
    until("an acquisition returns in time", || {
        let began = Instant::now();
        let error = keeper.try_lock_for("a", wait).unwrap_err();
        let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
        assert!(kinds.contains(&error.kind()), "{error:?}");
        began.elapsed() < wait + Duration::from_millis(100)
    });
    proxy.set(Fault::Pass);
    until("no key is left", || keys_left(&server).is_empty());
    drop(keeper);
    server.assert_clean();
}

fn refused_wait_command_releases(kind: RedisKind) {
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
    assert_eq!(keys_left(&server), Vec::<String>::new());
    // Now the release is refused, too.
    forbid("-del");
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert_eq!(keys_left(&server), ["lockkeeper:{default:a}"]);
}

/// The primary is demoted and promoted again after it granted a lock that no replica acknowledged.
fn fail_over_before_replicas_acknowledge(kind: RedisKind) {
    let (primary, replica) = with_replica(kind);
    let url = primary.url();
    let held = open(&url, "ttl=60s").lock("a").unwrap();
    let witness = Witness::new(true);
    witness.enter(&held);
    let keys = "ttl=60s&replicas=1&response_timeout=20s";
    let waiting = start_waiter(&url, keys, WAIT_LIMIT, &witness);
    until("the waiter is queued", || primary.queue_length("a") == 1);
    replica.stop().unwrap();
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    until("the grant waits for the replica", || {
        waits_for_replicas(&primary)
    });
    primary.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    until("the keeper retries", || {
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

/// The grant may have reached the new primary.
fn grant_of_a_demoted_primary_is_unknown(kind: RedisKind) {
    let (primary, replica) = with_replica(kind);
    let keeper = open(&primary.url(), "replicas=1&response_timeout=3s");
    let later = open(&primary.url(), "replicas=1");
    let demote = || primary.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    replica.stop().unwrap();
    let error = thread::scope(|scope| {
        let asking = scope.spawn(|| keeper.try_lock("a").unwrap_err());
        until("the grant waits for the replica", || {
            waits_for_replicas(&primary)
        });
        demote();
        asking.join().unwrap()
    });
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    assert!(error.source().is_some(), "{error:?}");
    // A writable replica would release the lock, and the new primary would not learn of it. So that is no release.
    primary.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    primary.command(&["FLUSHALL"]).unwrap();
    let writable = ["CONFIG", "SET", "replica-read-only", "no"];
    primary.command(&writable).unwrap();
    demote();
    let error = later.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
}

fn renewals_need_replicas(kind: RedisKind) {
    let (primary, replica) = with_replica(kind);
    let keeper = open(&primary.url(), "replicas=1&ttl=6s&response_timeout=2s");
    let held = lock_acknowledged(&keeper);
    let began = Instant::now();
    until("the first ttl is over", || {
        began.elapsed() > Duration::from_secs(7)
    });
    assert!(held.is_held());
    let lease = LeasePolicy::Fixed {
        ttl: Duration::from_secs(60),
    };
    let fixed = AcquireOptions::new().lease(lease);
    let other = keeper.acquire("b", &fixed).unwrap().unwrap();
    replica.stop().unwrap();
    // The keeper does not renew this one, so the error below is not that of its own renewal.
    let mut refused = None;
    until("the replica has stopped", || {
        refused = other.renew().err();
        refused.is_some()
    });
    let error = refused.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("replicas"), "{error}");
    // The keeper's own renewals fail as well, although the primary has carried them out.
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    replica.cont().unwrap();
    until("the replica acknowledges again", || other.renew().is_ok());
    let next = keeper.try_lock_for("a", WAIT_LIMIT).unwrap();
    assert!(next.expect("the lease has expired").token() > held.token());
}

fn cluster_nodes(kind: RedisKind) {
    let options = RedisOptions::new().config("cluster-enabled", ["yes"]);
    let server = RedisServer::start(kind, &options).unwrap();
    refused(&server.url(), ErrorKind::Unavailable, &["cluster"]);
    // A node that has all slots serves like a single server, after it has noticed that it has them.
    server
        .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .unwrap();
    until("the node serves", || {
        lockkeeper::open(&server.url()).is_ok()
    });
    let keeper = open(&server.url(), "");
    drop(keeper.lock("a").unwrap());
    // Move the name's slot to a second node.
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
    until("the nodes know each other", || {
        let nodes = server.command(&["CLUSTER", "NODES"]).unwrap();
        let nodes = nodes.text().unwrap();
        nodes.contains(&id) && !nodes.contains("handshake")
    });
    for node in [&server, &second] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id])
            .unwrap();
    }
    for answer in [keeper.try_lock("a"), keeper.try_lock_for("a", WAIT_LIMIT)] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
        for word in ["cluster", "MOVED"] {
            assert!(error.to_string().contains(word), "no {word:?} in {error}");
        }
    }
    // The second node has that slot only, and opening tries a name of another slot.
    until("the second node agrees", || {
        let info = second.command(&["CLUSTER", "INFO"]).unwrap();
        info.text().unwrap().contains("cluster_state:ok")
    });
    let url = second.url();
    refused(&url, ErrorKind::Incompatible, &["cluster", "MOVED"]);
}
