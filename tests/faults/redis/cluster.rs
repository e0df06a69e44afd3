//! Primaries of a cluster that fail, and slots that move.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use lockkeeper::clock::{Clock as _, HostInstant, SystemClock};
use lockkeeper::{Config, Error, ErrorKind, Observer, Released, WaitOutcome};
use lockkeeper_testkit::{
    Fault, RedisCluster, RedisKind, RedisOptions, RedisServer, Reply, suite, until,
};

use super::Case;
use super::fail_over::{outlives_its_primary, through_fail_over};
use super::store::{listening, open, start_waiter, waiting_at};
use crate::common::{HANG, WAIT_LIMIT, Witness};

pub(super) const CASES: &[Case] = &[
    ("cluster_primary_killed", |kind| {
        fail_over(kind, |cluster, owner| cluster.server(owner).kill());
    }),
    ("cluster_primary_stopped", |kind| {
        fail_over(kind, |cluster, owner| cluster.server(owner).stop().unwrap());
    }),
    ("cluster_primary_cut_off", |kind| {
        fail_over(kind, |cluster, owner| {
            cluster.proxy(owner).set(Fault::Dark);
            let takeover = ["CLUSTER", "FAILOVER", "TAKEOVER"];
            cluster
                .server(owner + RedisCluster::PRIMARIES)
                .command(&takeover)
                .unwrap();
        });
    }),
    (
        "cluster_fail_over_loses_a_grant",
        cluster_fail_over_loses_a_grant,
    ),
    ("cluster_fail_over_contended", cluster_fail_over_contended),
    (
        "cluster_slot_moves_under_a_lock",
        cluster_slot_moves_under_a_lock,
    ),
    (
        "cluster_slot_moves_under_waiters",
        cluster_slot_moves_under_waiters,
    ),
    (
        "cluster_slot_that_moves_is_no_outage",
        cluster_slot_that_moves_is_no_outage,
    ),
    (
        "cluster_lease_is_not_sought_where_its_slot_moves",
        cluster_lease_is_not_sought_where_its_slot_moves,
    ),
    ("cluster_slots_have_no_owner", cluster_slots_have_no_owner),
    ("cluster_seeds_killed", cluster_seeds_killed),
    ("cluster_names_on_all_nodes", cluster_names_on_all_nodes),
    ("cluster_by_tls", cluster_by_tls),
];

/// The cases that Redis 6.2 runs, too, which has no sharded publish and subscribe: those with waiters, and one on all nodes.
const ON_REDIS_6: [&str; 4] = [
    "cluster_primary_killed",
    "cluster_fail_over_contended",
    "cluster_slot_moves_under_waiters",
    "cluster_names_on_all_nodes",
];

pub(super) fn on_redis_6() -> Vec<Trial> {
    let cases = CASES.iter().filter(|(name, _)| ON_REDIS_6.contains(name));
    let trials = cases.map(|case| suite::trial(RedisKind::Redis6, *case));
    trials.collect()
}

/// A primary is replaced after this time. A busy machine may hold it up for less.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
/// No primary is replaced in a case that does not want it.
const NEVER: Duration = Duration::from_secs(86_400);

/// The keys of holders: a renewal is due after all limits of the suite.
const LONG_TTL: &str = "ttl=10m&response_timeout=5s";

/// The key of the name `a`, as the cases look at it.
pub(super) const KEY_OF_A: &str = "lockkeeper:bucket:{default:135}{a}";

/// Another name of the same slot.
const IN_SLOT_OF_A: &str = "b2328";

fn start(kind: RedisKind) -> (RedisCluster, usize) {
    started(RedisCluster::start(kind, 1, NODE_TIMEOUT).unwrap())
}

pub(super) fn start_without_replicas(kind: RedisKind) -> (RedisCluster, usize) {
    started(RedisCluster::start(kind, 0, NEVER).unwrap())
}

/// Returns the cluster, and the number of the primary that owns `a`.
fn started(cluster: RedisCluster) -> (RedisCluster, usize) {
    let (_, owner) = cluster.owner(KEY_OF_A, None).unwrap();
    (cluster, owner)
}

/// Returns all keys of a node but those of last epochs.
pub(super) fn keys_at(cluster: &RedisCluster, at: usize) -> Vec<String> {
    let keys = cluster.server(at).command(&["KEYS", "*"]).unwrap();
    let keys = keys.items().iter().filter_map(Reply::text);
    keys.filter(|key| !key.ends_with("}:epoch")).collect()
}

fn soon() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

fn wait_for_waiters(cluster: &RedisCluster, at: usize, count: usize) {
    until("the waiters are queued", || {
        waiting_at(cluster.server(at), KEY_OF_A) == count
    });
}

fn fail_over(kind: RedisKind, break_primary: fn(&RedisCluster, usize)) {
    let (cluster, owner) = start(kind);
    let replica = owner + RedisCluster::PRIMARIES;
    let replicated = || {
        wait_for_waiters(&cluster, owner, 1);
        wait_for_waiters(&cluster, replica, 1);
    };
    outlives_its_primary(&cluster.url(), IN_SLOT_OF_A, replicated, |call| {
        break_primary(&cluster, owner);
        call();
        let next = cluster.wait_for_fail_over(KEY_OF_A, owner).unwrap();
        // The waiter goes on waiting there.
        wait_for_waiters(&cluster, next, 1);
        cluster.server(next)
    });
}

/// The replica has not heard of the grant when it takes over: the holder learns of its loss, and the next token is larger.
fn cluster_fail_over_loses_a_grant(kind: RedisKind) {
    let (cluster, owner) = start(kind);
    let keeper = open(&cluster.url(), LONG_TTL);
    let held = keeper.lock("a").unwrap();
    until("the keeper listens", || {
        listening(cluster.server(owner)) == 1
    });
    let replica = cluster.server(owner + RedisCluster::PRIMARIES);
    until("the replica has the lock", || {
        !keys_at(&cluster, owner + RedisCluster::PRIMARIES).is_empty()
    });
    let writable = ["CONFIG", "SET", "replica-read-only", "no"];
    replica.command(&writable).unwrap();
    replica.command(&["FLUSHALL"]).unwrap();
    cluster.server(owner).kill();
    cluster.wait_for_fail_over(KEY_OF_A, owner).unwrap();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let next = open(&cluster.url(), "").lock("a").unwrap();
    assert!(next.token() > held.token());
}

/// Grants that the replica has acknowledged are not doubled by a fail-over.
fn cluster_fail_over_contended(kind: RedisKind) {
    let (cluster, owner) = start(kind);
    let keys = "ttl=2s&replicas=1&wait=30s&outage=wait&response_timeout=1s";
    let keepers = [(); 3].map(|()| open(&cluster.url(), keys));
    through_fail_over(&keepers, || {
        cluster.server(owner).kill();
        cluster.wait_for_fail_over(KEY_OF_A, owner).unwrap();
        // It becomes the replica that has to acknowledge.
        cluster.server(owner).restart().unwrap();
    });
}

/// Returns the error of an acquisition that a node refuses. On a busy machine its reply may come too late, which is unknown.
fn refused<T>(acquire: impl Fn() -> Result<Option<T>, Error>) -> Error {
    let mut refusal = None;
    until("the node refuses", || {
        let Err(error) = acquire() else {
            panic!("it is granted, or busy");
        };
        assert!(error.is_retryable(), "{error:?}");
        let is_known = error.kind() == ErrorKind::Unavailable;
        refusal = Some(error);
        is_known
    });
    refusal.unwrap()
}

/// While a slot is moved, its locks are renewed and released wherever their keys are; others are granted afterwards.
fn cluster_slot_moves_under_a_lock(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let next = (owner + 1) % RedisCluster::PRIMARIES;
    let (slot, _) = cluster.owner(KEY_OF_A, None).unwrap();
    let keeper = open(&cluster.url(), LONG_TTL);
    let rival = open(&cluster.url(), LONG_TTL);
    let held = keeper.lock("a").unwrap();
    assert_eq!(keys_at(&cluster, owner), [KEY_OF_A]);
    let other = rival.lock(IN_SLOT_OF_A).unwrap();
    until("both listen", || listening(cluster.server(owner)) == 2);
    assert_eq!(other.release().unwrap(), Released::Done);
    cluster.begin_move(slot, owner, next).unwrap();
    // A busy machine may reply too late for one request.
    let is_renewed = || held.renew().is_ok();
    // A waiter that comes now does not get into the queue, which would replace the key.
    refused(|| rival.try_lock_for("a", Duration::from_millis(300)));
    // Its key is still at the owner.
    until("the lease is renewed at the owner", is_renewed);
    let error = refused(|| rival.try_lock("a"));
    assert!(error.to_string().contains("is being moved"), "{error}");
    cluster.move_key(KEY_OF_A, owner, next).unwrap();
    until("the lease is renewed at the next node", is_renewed);
    // Its epoch is not there yet.
    refused(|| rival.try_lock("a"));
    let seen = rival.admin().unwrap().held(None, soon());
    assert_eq!(seen.unwrap().len(), 1);
    // A permit of the same slot, which is free, is refused as well.
    let permits = rival.semaphore("a", 1).unwrap();
    refused(|| permits.try_acquire());
    let token = held.token();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(keys_at(&cluster, next).is_empty());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| rival.try_lock_for("a", WAIT_LIMIT).unwrap());
        cluster.end_move(slot, owner, next).unwrap();
        let granted = waiting.join().unwrap().expect("it is free");
        assert!(granted.token() > token);
        assert_eq!(keys_at(&cluster, next), [KEY_OF_A]);
    });
}

/// Notes whether an outage began.
#[derive(Default)]
struct Outage(AtomicBool);

impl Observer for Outage {
    fn outage_began(&self, _: &str, _: &Error) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How long a caller asks for a name whose slot is being moved.
const MOVING: Duration = Duration::from_secs(5);

/// The names of the slot are asked for again and again meanwhile, and other names of the node go on.
fn cluster_slot_that_moves_is_no_outage(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let next = (owner + 1) % RedisCluster::PRIMARIES;
    let (slot, _) = cluster.owner(KEY_OF_A, None).unwrap();
    let outage = Arc::new(Outage::default());
    let config = Config::from_url(&format!("{}/?{LONG_TTL}", cluster.url())).unwrap();
    let config = config.observer(Arc::clone(&outage) as _);
    let keeper = lockkeeper::open_config(&config).unwrap();
    let names = (0..30).map(|number| format!("seat:{number}"));
    let names: Vec<_> = names
        .filter(|name| {
            let held = keeper.lock(name).unwrap();
            let end = format!("{{{name}}}");
            let is_there = keys_at(&cluster, owner).iter().any(|it| it.ends_with(&end));
            held.release().unwrap();
            is_there
        })
        .collect();
    assert!(!names.is_empty());
    cluster.begin_move(slot, owner, next).unwrap();
    thread::scope(|scope| {
        // A guard that its thread returned would keep the others waiting.
        let lock = || {
            keeper
                .try_lock_for("a", WAIT_LIMIT)
                .map(|guard| guard.is_some())
        };
        let waiting = [(); 8].map(|()| scope.spawn(lock));
        // A busy machine may leave no time for the last reply.
        until("the move is the reason", || {
            let error = keeper.try_lock_for(IN_SLOT_OF_A, MOVING).unwrap_err();
            assert!(error.is_retryable(), "{error:?}");
            error.to_string().contains("is being moved")
        });
        for name in names.iter().cycle().take(100) {
            keeper.lock(name).unwrap().release().unwrap();
        }
        assert!(!outage.0.load(Ordering::SeqCst));
        cluster.end_move(slot, owner, next).unwrap();
        for waiting in waiting {
            assert!(waiting.join().unwrap().unwrap(), "the slot is there");
        }
    });
    assert!(!outage.0.load(Ordering::SeqCst));
}

/// The key of a moving slot is still at the owner, which does not reply. The next node must not report the lease as
/// lost.
fn cluster_lease_is_not_sought_where_its_slot_moves(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let next = (owner + 1) % RedisCluster::PRIMARIES;
    let (slot, _) = cluster.owner(KEY_OF_A, None).unwrap();
    let keeper = open(&cluster.url(), "ttl=10m&response_timeout=2s");
    let held = keeper.lock("a").unwrap();
    let other = keeper.lock(IN_SLOT_OF_A).unwrap();
    let mut keys = keys_at(&cluster, owner);
    keys.retain(|key| key != KEY_OF_A);
    cluster.begin_move(slot, owner, next).unwrap();
    cluster.move_key(&keys[0], owner, next).unwrap();
    // The keeper learns where the slot moves.
    other.renew().unwrap();
    cluster.proxy(owner).set(Fault::Dark);
    let error = held.renew().unwrap_err();
    assert_ne!(error.kind(), ErrorKind::Lost, "{error:?}");
    cluster.proxy(owner).set(Fault::Pass);
    until("the lease is renewed", || held.renew().is_ok());
    assert_eq!(held.release().unwrap(), Released::Done);
    assert_eq!(other.release().unwrap(), Released::Done);
}

/// A lease and its waiters survive the move of their slot.
fn cluster_slot_moves_under_waiters(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let next = (owner + 1) % RedisCluster::PRIMARIES;
    let (slot, _) = cluster.owner(KEY_OF_A, None).unwrap();
    let witness = Witness::new(true);
    let keeper = open(&cluster.url(), LONG_TTL);
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let early = start_waiter(&cluster.url(), LONG_TTL, WAIT_LIMIT, &witness);
    wait_for_waiters(&cluster, owner, 1);
    cluster.begin_move(slot, owner, next).unwrap();
    let late = start_waiter(&cluster.url(), LONG_TTL, WAIT_LIMIT, &witness);
    cluster.end_move(slot, owner, next).unwrap();
    wait_for_waiters(&cluster, next, 2);
    held.renew().unwrap();
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let tokens = [early, late].map(|waiter| waiter.answer().expect("it is released"));
    assert!(tokens.iter().all(|later| *later > token), "{tokens:?}");
    until("no key is left", || keys_at(&cluster, next).is_empty());
}

/// Without the nodes that own some slots the cluster is down; waiting callers get their locks when it is whole again.
fn cluster_slots_have_no_owner(kind: RedisKind) {
    let (cluster, owner) = start_without_replicas(kind);
    let (slot, _) = cluster.owner(KEY_OF_A, None).unwrap();
    let slot = slot.to_string();
    let keeper = open(&cluster.url(), LONG_TTL);
    let held = keeper.lock("a").unwrap();
    assert_eq!(held.release().unwrap(), Released::Done);
    let has_no_owner = || {
        // The owner first: what it says of itself is believed.
        let at = |at| cluster.server((owner + at) % RedisCluster::PRIMARIES);
        let nodes: Vec<_> = (0..RedisCluster::PRIMARIES).map(at).collect();
        for node in &nodes {
            // A node that does not know an owner refuses.
            let _ = node.command(&["CLUSTER", "DELSLOTS", &slot]);
        }
        nodes.iter().all(|node| {
            let info = node.command(&["CLUSTER", "INFO"]).unwrap().text();
            info.is_some_and(|info| info.contains("cluster_slots_assigned:16383"))
        })
    };
    until("no node knows an owner", has_no_owner);
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let began = Instant::now();
    let waited = keeper.try_lock_for("a", Duration::from_millis(300));
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(began.elapsed() < HANG);
    until("an operator is told", || {
        // On a busy machine, an earlier message of the owner may come so late that a node believes it again.
        has_no_owner();
        let found = keeper.admin().unwrap().examine(soon()).unwrap();
        let of_cluster = found.iter().find(|found| found.topic == "cluster");
        of_cluster.unwrap().what.contains("1 of 16384")
    });
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.try_lock_for("a", WAIT_LIMIT).unwrap());
        cluster
            .server(owner)
            .command(&["CLUSTER", "ADDSLOTS", &slot])
            .unwrap();
        drop(waiting.join().unwrap().expect("it is free"));
    });
}

/// A node that is not listed is found through the others, and the listed one is not needed any more.
fn cluster_seeds_killed(kind: RedisKind) {
    let (cluster, owner) = start(kind);
    let seed = RedisCluster::PRIMARIES + (owner + 1) % RedisCluster::PRIMARIES;
    let url = format!("redis+cluster://{}", cluster.proxy(seed).addr());
    let keeper = open(&url, LONG_TTL);
    cluster.server(seed).kill();
    let held = keeper.lock("a").unwrap();
    // Also a new map comes from another node.
    assert_eq!(keeper.admin().unwrap().held(None, soon()).unwrap().len(), 1);
    assert_eq!(held.release().unwrap(), Released::Done);
    let error = lockkeeper::open(&url).unwrap_err();
    assert!(error.is_unreachable(), "{error:?}");
    let fallback = format!("{url}?fallback=memory:");
    assert_eq!(lockkeeper::open(&fallback).unwrap().backend(), "memory");
}

/// Names are spread over the nodes; they are locked together, listed, taken away and examined on all of them.
fn cluster_names_on_all_nodes(kind: RedisKind) {
    let (cluster, _) = start_without_replicas(kind);
    let keeper = open(&cluster.url(), LONG_TTL);
    let names: Vec<String> = (0..30).map(|number| format!("seat:{number:02}")).collect();
    let held = keeper.lock_all(&names).unwrap();
    for at in 0..RedisCluster::PRIMARIES {
        assert!(!keys_at(&cluster, at).is_empty(), "node {at} has no lock");
    }
    let operator = open(&cluster.url(), "");
    let admin = operator.admin().unwrap();
    let seen = admin.held(None, soon()).unwrap();
    let seen: Vec<_> = seen.into_iter().map(|held| held.name).collect();
    assert_eq!(seen, names);
    until("the keeper listens on all nodes", || {
        (0..RedisCluster::PRIMARIES).all(|at| listening(cluster.server(at)) == 1)
    });
    // A drop may leave its releases to the keeper.
    held.release().unwrap();
    // Once alone it may verify its leases since it has begun to listen. The pace of verifications bounds how often it can.
    for _ in 0..4 {
        let held = keeper.lock("seat:07").unwrap();
        let name = admin.held(None, soon()).unwrap().pop().unwrap();
        assert!(admin.force_release(&name, soon()).unwrap());
        assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    }
    let found = admin.examine(soon()).unwrap();
    for topic in ["cluster", "cluster-state", "persistence", "role"] {
        let count = found.iter().filter(|found| found.topic == topic).count();
        assert_eq!(count, 1, "{topic}: {found:#?}");
    }
}

/// A node that does not know its own host is at the one by which it was asked. The password is shown nowhere.
fn cluster_by_tls(kind: RedisKind) {
    let options = RedisOptions::new().password("s3cret").tls();
    let options = options.cluster_node(NEVER).config("tls-cluster", ["yes"]);
    let node = RedisServer::start(kind, &options).unwrap();
    let all_slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    node.command(&all_slots).unwrap();
    until("the node serves", || {
        let info = node.command(&["CLUSTER", "INFO"]).unwrap().text();
        info.is_some_and(|info| info.contains("cluster_state:ok"))
    });
    let port = node.tls_addr().unwrap().port();
    let authority = node.certificates().unwrap().authority.display();
    let url = |login: &str| {
        format!("rediss+cluster://{login}localhost:{port}/?ca_file={authority}&response_timeout=5s")
    };
    let keeper = lockkeeper::open(&url(":s3cret@")).unwrap();
    let held = keeper.lock("a").unwrap();
    held.renew().unwrap();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(!format!("{keeper:?} {}", keeper.location()).contains("s3cret"));
    for login in ["", ":another@"] {
        let error = lockkeeper::open(&url(login)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
        assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
    }
}
