//! Three members of which one dies, stops, or is cut off from the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::admin::{Finding, Severity};
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, LockKeeper, Released, WaitOutcome};
use lockkeeper_testkit::{EtcdCluster, EtcdKind, EtcdOptions, TestServer as _, until};

use super::Case;
use crate::common::contended::SetOnDrop;
use crate::common::{WAIT_LIMIT, Waiter, Witness, opened};

pub(super) const CASES: &[Case] = &[
    ("leader_killed", |kind| {
        leader_fails(kind, |cluster, leader| member(cluster, leader).kill());
    }),
    ("leader_stopped", |kind| {
        leader_fails(kind, |cluster, leader| {
            member(cluster, leader).stop().unwrap();
        });
    }),
    ("leader_cut_off", |kind| {
        leader_fails(kind, EtcdCluster::cut_off);
    }),
    ("leader_ended", |kind| {
        leader_fails(kind, |cluster, leader| {
            member(cluster, leader).end().unwrap();
        });
    }),
    ("leadership_moved", |kind| {
        leader_fails(kind, |cluster, leader| {
            cluster.move_leadership(leader).unwrap();
        });
    }),
    (
        "contention_while_leaders_change",
        contention_while_leaders_change,
    ),
    ("learner_is_left", learner_is_left),
    ("holder_in_minority", holder_in_minority),
    ("waiter_in_minority", waiter_in_minority),
    ("two_members_killed", two_members_killed),
];

/// An election takes a second or two, and longer on a busy machine: the lease outlives it.
const KEYS: &str = "ttl=30s&response_timeout=3s&connect_timeout=3s&wait=30s";
/// The holder's lease does not outlive what happens.
const SHORT: &str = "ttl=3s&response_timeout=1s&connect_timeout=1s&wait=25s";

/// No election concerns the holder.
const PATIENT: &str = "ttl=20s&response_timeout=5s&wait=25s";

fn start(kind: EtcdKind) -> EtcdCluster {
    EtcdCluster::start(kind, &EtcdOptions::new()).unwrap()
}

fn member(cluster: &EtcdCluster, number: usize) -> &lockkeeper_testkit::EtcdServer {
    cluster.members().get(number).unwrap()
}

fn open(url: &str, keys: &str) -> LockKeeper {
    opened(&format!("{url}/?{keys}"))
}

fn assert_clean(cluster: &EtcdCluster, asked: usize) {
    until("no key is left", || {
        member(cluster, asked).leftovers().unwrap().is_empty()
    });
}

/// A lock outlives the loss of the leader, by which its holder had reached the cluster.
fn leader_fails(kind: EtcdKind, fault: fn(&EtcdCluster, usize)) {
    let cluster = start(kind);
    let leader = cluster.leader(&[]).unwrap();
    let holder = open(&cluster.url(leader), KEYS);
    let rival = open(&cluster.url(leader + 1), KEYS);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let url = format!("{}/?{KEYS}", cluster.url(leader));
    let waiter = Waiter::start(opened(&url), WAIT_LIMIT, &witness);
    until("the waiter is queued", || {
        member(&cluster, leader).leftovers().unwrap().len() == 2
    });
    fault(&cluster, leader);
    let next = cluster.leader(&[leader]).unwrap();
    assert_ne!(next, leader);
    until("the holder reaches the new leader", || held.renew().is_ok());
    assert!(rival.try_lock("a").unwrap().is_none());
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiter.answer().expect("it is granted") > token);
    let last = rival.lock("a").unwrap();
    witness.enter(&last);
    assert_eq!(last.release().unwrap(), Released::Done);
    drop((holder, rival));
    assert_clean(&cluster, next);
}

/// Every acquisition with time to wait is granted, while the leadership moves and leaders end in order.
fn contention_while_leaders_change(kind: EtcdKind) {
    let cluster = start(kind);
    let keepers = [0, 1, 2].map(|first| open(&cluster.url(first), KEYS));
    let witness = Witness::new(true);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for keeper in &keepers {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    witness.pass(keeper.lock("a").unwrap());
                }
            });
        }
        // Each of these is a proposal of its own, so that the leader has some when it hands over.
        for (number, keeper) in keepers.iter().cycle().take(12).enumerate() {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    drop(keeper.lock_shared(format!("other-{number}")).unwrap());
                }
            });
        }
        let _over = SetOnDrop(&over);
        for round in 0..8 {
            let leader = cluster.leader(&[]).unwrap();
            if round % 4 == 3 {
                member(&cluster, leader).end().unwrap();
                member(&cluster, leader).restart().unwrap();
            } else {
                cluster.move_leadership(leader).unwrap();
            }
            let before = witness.grants();
            until("grants go on", || witness.grants() >= before + 20);
        }
    });
}

/// A learner serves no client, and a keeper that comes to it goes on to the next member.
fn learner_is_left(kind: EtcdKind) {
    let options = EtcdOptions::new();
    let lax = options.clone().arg("--strict-reconfig-check=false");
    let cluster = EtcdCluster::start(kind, &lax).unwrap();
    let learner = cluster.add_learner(&options).unwrap();
    let leader = cluster.leader(&[]).unwrap();
    let [first, last] = [leader + 1, leader].map(|number| member(&cluster, number % 3));
    let url = format!("etcd://{},{},{}", first.addr(), learner.addr(), last.addr());
    let witness = Witness::new(true);
    let [holder, rival] = [&url, &cluster.url(leader)].map(|url| open(url, KEYS));
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    first.kill();
    until("the holder passes the learner", || held.renew().is_ok());
    assert!(rival.try_lock("a").unwrap().is_none());
    let waiter = Waiter::start(opened(&format!("{url}/?{KEYS}")), WAIT_LIMIT, &witness);
    until("the waiter is queued", || {
        last.leftovers().unwrap().len() == 2
    });
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiter.answer().expect("it is granted") > token);
    let found = holder
        .admin()
        .unwrap()
        .examine(SystemClock.now() + WAIT_LIMIT);
    let found = found.unwrap();
    let warned = found.iter().filter(|it| it.severity == Severity::Warning);
    let warned: Vec<_> = warned.map(|it| it.topic).collect();
    let mut expected = vec!["listed members", "learner"];
    if kind == EtcdKind::Etcd3_4 {
        expected.push("former leader");
    }
    assert_eq!(warned, expected, "{found:?}");
    drop((holder, rival));
    assert_clean(&cluster, leader);
}

/// The holder reaches only a member that is cut off: it knows of its loss before the others grant the name.
fn holder_in_minority(kind: EtcdKind) {
    let cluster = start(kind);
    let leader = cluster.leader(&[]).unwrap();
    let holder = open(&member(&cluster, leader).url(), SHORT);
    let rival = open(&cluster.url(leader + 1), KEYS);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    cluster.cut_off(leader);
    // The witness checks that the former holder knows of its loss by now.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(next.token() > held.token());
    let error = holder.try_lock("b").unwrap_err();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    cluster.join();
    let _ = held.release();
    until("the former holder sees that the lock is held", || {
        let answer = holder.try_lock("a");
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        answer.is_ok()
    });
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    let again = holder.lock("a").unwrap();
    witness.enter(&again);
    drop((again, holder, rival));
    assert_clean(&cluster, leader);
}

/// The waiter reaches only a member that is cut off: it is granted the name when that is back, and delays
/// others for a short time only.
fn waiter_in_minority(kind: EtcdKind) {
    let cluster = start(kind);
    let leader = cluster.leader(&[]).unwrap();
    let off = (leader + 1) % 3;
    let holder = open(&cluster.url(leader), PATIENT);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let url = format!("{}/?{SHORT}", member(&cluster, off).url());
    let waiter = Waiter::start(opened(&url), WAIT_LIMIT, &witness);
    until("the waiter is queued", || {
        member(&cluster, leader).leftovers().unwrap().len() == 2
    });
    cluster.cut_off(off);
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = holder.try_lock_for("a", Duration::from_secs(10)).unwrap();
    let next = next.expect("a waiter that is gone does not hold up the others");
    witness.enter(&next);
    cluster.join();
    let second = next.token().get();
    match next.release() {
        Ok(found) => assert_eq!(found, Released::Done),
        // The member that is back may call for an election, and a busy machine takes long for that.
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
    }
    assert!(waiter.answer().expect("it outlasts the outage") > token.max(second));
    drop(holder);
    assert_clean(&cluster, leader);
}

/// Without most of the members nothing is granted, and everything goes on when they are back.
fn two_members_killed(kind: EtcdKind) {
    let cluster = start(kind);
    let leader = cluster.leader(&[]).unwrap();
    let keeper = open(&cluster.url(leader), SHORT);
    let witness = Witness::new(true);
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let others = [1, 2].map(|step| member(&cluster, (leader + step) % 3));
    others.iter().for_each(|other| other.kill());
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let error = keeper.try_lock("b").unwrap_err();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    let admin = keeper.admin().unwrap();
    until("doctor finds that there is no leader", || {
        let found = admin.examine(SystemClock.now() + WAIT_LIMIT);
        let is_it = |it: &Finding| it.topic == "leader" && it.severity == Severity::Unusable;
        found.is_ok_and(|found| found.iter().any(is_it))
    });
    // Each of them waits for the other one.
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(|| other.restart().unwrap());
        }
    });
    let next = keeper.lock("a").unwrap();
    witness.enter(&next);
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    assert_clean(&cluster, leader);
}
