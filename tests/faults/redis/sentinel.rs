//! Fail-overs that sentinels carry out, and sentinels that fail.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, LockKeeper, Released, WaitOutcome};
use lockkeeper_testkit::{Fault, RedisKind, SentinelSet, until};

use super::Case;
use super::fail_over::{outlives_its_primary, through_fail_over};
use super::store::{keys_left, listening, open};
use crate::common::{HANG, Keepers as _, WAIT_LIMIT, fake_server, refused};

pub(super) const CASES: &[Case] = &[
    ("sentinel_primary_killed", |kind| {
        fail_over(kind, |set| set.server(0).kill());
    }),
    ("sentinel_primary_stopped", |kind| {
        fail_over(kind, |set| set.server(0).stop().unwrap());
    }),
    ("sentinel_primary_cut_off", |kind| {
        fail_over(kind, |set| set.proxy(0).set(Fault::Dark));
    }),
    (
        "sentinel_former_primary_is_left",
        sentinel_former_primary_is_left,
    ),
    (
        "sentinel_stopped_before_fail_over",
        sentinel_stopped_before_fail_over,
    ),
    ("sentinels_killed", sentinels_killed),
    ("sentinels_stopped", sentinels_stopped),
    (
        "sentinel_that_refuses_ends_no_wait",
        sentinel_that_refuses_ends_no_wait,
    ),
    ("sentinel_fail_over_contended", sentinel_fail_over_contended),
    ("sentinel_promotion_has_grace", sentinel_promotion_has_grace),
];

/// A primary is replaced after this time. A busy machine may hold it up for less.
const DOWN_AFTER: Duration = Duration::from_secs(3);

/// The keys of holders: a renewal is due after all limits of the suite.
const LONG_TTL: &str = "ttl=10m&response_timeout=5s";

pub(super) fn start(kind: RedisKind) -> SentinelSet {
    SentinelSet::start(kind, 2, 3, DOWN_AFTER).unwrap()
}

/// Waits until both replicas have what the primary has of `a`.
fn wait_until_replicated(set: &SentinelSet, waiting: usize) {
    until("the replicas have the lock and its waiter", || {
        [1, 2].iter().all(|at| {
            let replica = set.server(*at);
            !keys_left(replica).is_empty() && replica.queue_length("a") == waiting
        })
    });
}

fn fail_over(kind: RedisKind, break_primary: fn(&SentinelSet)) {
    let set = start(kind);
    let replicated = || wait_until_replicated(&set, 1);
    outlives_its_primary(&set.url(), "b", replicated, |call| {
        break_primary(&set);
        call();
        set.server(set.wait_for_fail_over(0).unwrap())
    });
}

/// Empties the replicas, as if they had not received any lock before the fail-over.
fn have_replicas_forget(set: &SentinelSet) {
    for replica in [1, 2].map(|at| set.server(at)) {
        let writable = ["CONFIG", "SET", "replica-read-only", "no"];
        replica.command(&writable).unwrap();
        replica.command(&["FLUSHALL"]).unwrap();
    }
}

/// Makes `sentinel` replace the primary. The old primary refuses the sentinel's commands, and goes on as a
/// primary.
fn replace_disobedient_primary(set: &SentinelSet, sentinel: usize) {
    let rules = ["ACL", "SETUSER", "default", "-slaveof", "-replicaof"];
    set.server(0).command(&rules).unwrap();
    let sentinel = set.sentinel(sentinel);
    until("the sentinel names another one", || {
        // It gives up where a busy machine keeps a replica from replying in time.
        let _ = sentinel.command(&["SENTINEL", "FAILOVER", "mymaster"]);
        set.named_by(sentinel).unwrap() != Some(0)
    });
}

#[track_caller]
fn loss_is_noticed(set: &SentinelSet, break_sentinels: impl FnOnce()) {
    let keeper = open(&set.url(), LONG_TTL);
    let held = keeper.lock("a").unwrap();
    wait_until_replicated(set, 0);
    until("the keeper follows a sentinel", || {
        let listeners = ["CLIENT", "LIST", "TYPE", "pubsub"];
        let listeners = set.sentinel(0).command(&listeners).unwrap();
        listeners.text().is_some_and(|list| !list.is_empty())
    });
    have_replicas_forget(set);
    break_sentinels();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let rival = open(&set.url(), "");
    let next = rival.lock("a").unwrap();
    assert!(next.token() > held.token());
    assert_eq!(keys_left(set.server(0)), ["lockkeeper:{default:a}"]);
    until("the keeper has left the former primary", || {
        listening(set.server(0)) == 0
    });
}

/// The former primary still answers as one, and has the lease.
fn sentinel_former_primary_is_left(kind: RedisKind) {
    let set = start(kind);
    loss_is_noticed(&set, || replace_disobedient_primary(&set, 0));
}

/// No message comes from the sentinel that the keeper listens to.
fn sentinel_stopped_before_fail_over(kind: RedisKind) {
    let set = start(kind);
    loss_is_noticed(&set, || {
        set.sentinel(0).stop().unwrap();
        replace_disobedient_primary(&set, 1);
    });
}

/// Cuts the keeper's connections until it has none: then it has to ask a sentinel for another one, and sends nothing.
fn connections_are_cut(set: &SentinelSet, keeper: &LockKeeper) {
    until("the keeper asks a sentinel", || {
        set.proxy(0).cut();
        match keeper.try_lock("b") {
            Ok(_) => false,
            // A request was sent on a connection that was cut.
            Err(error) if error.kind() == ErrorKind::Unknown => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
                true
            }
        }
    });
}

fn sentinels_killed(kind: RedisKind) {
    let set = start(kind);
    let keeper = open(&set.url(), LONG_TTL);
    let held = keeper.lock("a").unwrap();
    let [first, second, third] = [0, 1, 2].map(|at| set.sentinel(at));
    first.kill();
    second.kill();
    drop(open(&set.url(), "").lock("b").unwrap());
    third.kill();
    // A connection to the primary serves on.
    drop(keeper.lock("b").unwrap());
    held.renew().unwrap();
    let error = lockkeeper::open(&set.url()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.is_unreachable() && error.to_string().contains("Sentinel"));
    let fallback = format!("{}?fallback=memory:", set.url());
    assert_eq!(lockkeeper::open(&fallback).unwrap().backend(), "memory");
    // Connections that break find the primary as soon as a sentinel answers.
    connections_are_cut(&set, &keeper);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("b", WAIT_LIMIT).unwrap());
        second.restart().unwrap();
        drop(waiting.join().unwrap().expect("it is free"));
    });
    held.renew().unwrap();
    assert_eq!(held.release().unwrap(), Released::Done);
}

/// While the others still name the former primary, the one sentinel that refuses the login is asked, too.
fn sentinel_that_refuses_ends_no_wait(kind: RedisKind) {
    let set = start(kind);
    let refusing = fake_server(b"", b"-NOAUTH Authentication required.\r\n", usize::MAX);
    let url = set.url().replace("://", &format!("://{refusing},"));
    let keeper = open(&url, LONG_TTL);
    drop(keeper.lock("a").unwrap());
    set.server(0).kill();
    let granted = keeper.try_lock_for("a", WAIT_LIMIT).unwrap();
    drop(granted.expect("the next primary grants it"));
    for sentinel in [0, 1, 2].map(|at| set.sentinel(at)) {
        sentinel.kill();
    }
    refused(&url, ErrorKind::PermissionDenied, &["sentinel_password"]);
}

/// Grants that all replicas have acknowledged are not doubled by a fail-over.
fn sentinel_fail_over_contended(kind: RedisKind) {
    let set = start(kind);
    let keys = "ttl=2s&replicas=2&wait=30s&outage=wait&response_timeout=1s";
    let keepers = [(); 3].map(|()| open(&set.url(), keys));
    through_fail_over(&keepers, || {
        set.server(0).kill();
        set.wait_for_fail_over(0).unwrap();
        // It becomes the second replica.
        set.server(0).restart().unwrap();
    });
}

/// A former holder that cannot look has given up by its own clock before the next primary grants anything.
fn sentinel_promotion_has_grace(kind: RedisKind) {
    let set = start(kind);
    let has_run = |at: usize, seconds: u64| {
        let uptime = set.server(at).info("server").unwrap();
        let uptime = uptime
            .get("uptime_in_seconds")
            .and_then(|it| it.parse().ok());
        uptime > Some(seconds)
    };
    // It is not the start of a server that counts.
    until("the replicas have run for longer", || {
        has_run(1, 15) && has_run(2, 15)
    });
    let cut_off = open(&set.url(), "ttl=10m");
    let held = cut_off.lock("a").unwrap();
    wait_until_replicated(&set, 0);
    drop(open(&set.url(), "restart_grace=14s").lock("b").unwrap());
    set.server(0).kill();
    let next = set.wait_for_fail_over(0).unwrap();
    let error = open(&set.url(), "restart_grace=14s").try_lock("b");
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("restart_grace"), "{error}");
    assert_eq!(keys_left(set.server(next)), ["lockkeeper:{default:a}"]);
    // A lease that the replica has is renewed meanwhile.
    held.renew().unwrap();
    let waiting = open(&set.url(), "restart_grace=5s");
    let granted = waiting.try_lock_for("b", WAIT_LIMIT).unwrap();
    drop(granted.expect("its time is over"));
}

/// A caller returns by its deadline though no sentinel answers.
fn sentinels_stopped(kind: RedisKind) {
    let set = start(kind);
    let keeper = open(&set.url(), "");
    for sentinel in [0, 1, 2].map(|at| set.sentinel(at)) {
        sentinel.stop().unwrap();
    }
    connections_are_cut(&set, &keeper);
    // On a busy machine, a request from before the cut may still be unknown.
    until("no request is under way", || {
        let began = Instant::now();
        let waited = keeper.try_lock_for("a", Duration::from_secs(1));
        assert!(began.elapsed() < Duration::from_secs(1) + HANG);
        let Err(error) = waited else {
            // On a connection that was made late.
            set.proxy(0).cut();
            return false;
        };
        assert!(error.is_retryable(), "{error:?}");
        error.kind() == ErrorKind::Unavailable
    });
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("a", WAIT_LIMIT).unwrap());
        set.sentinel(2).cont().unwrap();
        drop(waiting.join().unwrap().expect("it is free"));
    });
}
