//! Three members of which one dies, stops, or is cut off from the others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, LockKeeper, Released, WaitOutcome};
use lockkeeper_testkit::{
    TestServer as _, ZooKeeperEnsemble, ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer, until,
};

use super::Case;
use crate::common::contended::SetOnDrop;
use crate::common::{WAIT_LIMIT, Waiter, Witness, opened};

pub(super) const CASES: &[Case] = &[
    ("leader_killed", |kind| {
        member_fails(kind, 0, |ensemble, leader| member(ensemble, leader).kill());
    }),
    ("leader_stopped", |kind| {
        member_fails(kind, 0, |ensemble, leader| {
            member(ensemble, leader).stop().unwrap();
        });
    }),
    ("leader_cut_off", |kind| {
        member_fails(kind, 0, ZooKeeperEnsemble::cut_off);
    }),
    ("follower_killed", |kind| {
        member_fails(kind, 1, |ensemble, follower| {
            member(ensemble, follower).kill();
        });
    }),
    ("follower_stopped", |kind| {
        member_fails(kind, 1, |ensemble, follower| {
            member(ensemble, follower).stop().unwrap();
        });
    }),
    (
        "contention_while_leaders_change",
        contention_while_leaders_change,
    ),
    ("holder_in_minority", |kind| holder_in_minority(kind, 0)),
    ("holder_at_follower_in_minority", |kind| {
        holder_in_minority(kind, 1);
    }),
    ("waiter_in_minority", waiter_in_minority),
    ("two_members_killed", two_members_killed),
];

/// An election takes a second or two, and longer on a busy machine: the lease outlives it.
const KEYS: &str = "ttl=30s&response_timeout=3s&connect_timeout=3s&wait=30s";
/// The holder's lease does not outlive what happens.
const SHORT: &str = "ttl=3s&response_timeout=1s&connect_timeout=1s&wait=25s";
/// No election concerns the holder.
const PATIENT: &str = "ttl=20s&response_timeout=5s&wait=25s";

fn start(kind: ZooKeeperKind) -> ZooKeeperEnsemble {
    ZooKeeperEnsemble::start(kind, &ZooKeeperOptions::new()).unwrap()
}

fn member(ensemble: &ZooKeeperEnsemble, number: usize) -> &ZooKeeperServer {
    ensemble.members().get(number % 3).unwrap()
}

fn open(url: &str, keys: &str) -> LockKeeper {
    opened(&format!("{url}/?{keys}"))
}

fn wait_for_waiter(asked: &ZooKeeperServer) {
    until("the waiter is queued", || {
        asked.waiters("default", "a").unwrap() == 1
    });
}

fn assert_clean(asked: &ZooKeeperServer) {
    until("no lock is left", || asked.leftovers().unwrap().is_empty());
}

/// A lock outlives the loss of the member by which its holder had reached the ensemble: the leader, or one `after` it.
fn member_fails(kind: ZooKeeperKind, after: usize, fault: fn(&ZooKeeperEnsemble, usize)) {
    let ensemble = start(kind);
    let failing = (ensemble.leader(&[]).unwrap() + after) % 3;
    let holder = open(&ensemble.url(failing), KEYS);
    let rival = open(&ensemble.url(failing + 1), KEYS);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiter = open(&ensemble.url(failing), KEYS);
    let waiter = Waiter::start(waiter, WAIT_LIMIT, &witness);
    wait_for_waiter(member(&ensemble, failing + 1));
    fault(&ensemble, failing);
    let leader = ensemble.leader(&[failing]).unwrap();
    until("the holder reaches the others", || held.renew().is_ok());
    assert!(rival.try_lock("a").unwrap().is_none());
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiter.answer().expect("it is granted") > token);
    let last = rival.lock("a").unwrap();
    witness.enter(&last);
    assert_eq!(last.release().unwrap(), Released::Done);
    drop((holder, rival));
    assert_clean(member(&ensemble, leader));
}

/// Every acquisition with time to wait is granted, while leaders are killed, stopped and cut off.
fn contention_while_leaders_change(kind: ZooKeeperKind) {
    let ensemble = start(kind);
    let keepers = [0, 1, 2].map(|first| open(&ensemble.url(first), KEYS));
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
        let _over = SetOnDrop(&over);
        for round in 0..6 {
            let leader = ensemble.leader(&[]).unwrap();
            match round % 3 {
                0 => member(&ensemble, leader).kill(),
                1 => member(&ensemble, leader).stop().unwrap(),
                _ => ensemble.cut_off(leader),
            }
            let before = witness.grants();
            until("grants go on", || witness.grants() >= before + 20);
            match round % 3 {
                0 => member(&ensemble, leader).restart().unwrap(),
                1 => member(&ensemble, leader).cont().unwrap(),
                _ => ensemble.join(),
            }
        }
    });
}

/// The holder reaches only a member that is cut off, the leader or one `after` it: the holder knows of its loss before the
/// others grant the name, though that member still answers for a while.
fn holder_in_minority(kind: ZooKeeperKind, after: usize) {
    let ensemble = start(kind);
    let cut_off = (ensemble.leader(&[]).unwrap() + after) % 3;
    let holder = open(&member(&ensemble, cut_off).url(), SHORT);
    let rival = open(&ensemble.url(cut_off + 1), KEYS);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    ensemble.cut_off(cut_off);
    // The witness checks that the former holder knows of its loss by now.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(next.token() > held.token());
    let error = holder.try_lock("b").unwrap_err();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
    assert!(kinds.contains(&error.kind()), "{error:?}");
    ensemble.join();
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
    assert_clean(member(&ensemble, cut_off));
}

/// The waiter reaches only a member that is cut off: it is granted the name when that is back, and delays others for a short
/// time only.
fn waiter_in_minority(kind: ZooKeeperKind) {
    let ensemble = start(kind);
    let leader = ensemble.leader(&[]).unwrap();
    let cut_off = (leader + 1) % 3;
    let holder = open(&ensemble.url(leader), PATIENT);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiter = open(&member(&ensemble, cut_off).url(), SHORT);
    let waiter = Waiter::start(waiter, WAIT_LIMIT, &witness);
    wait_for_waiter(member(&ensemble, leader));
    ensemble.cut_off(cut_off);
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = holder.try_lock_for("a", Duration::from_secs(10)).unwrap();
    let next = next.expect("a waiter that is gone does not hold up the others");
    witness.enter(&next);
    ensemble.join();
    let second = next.token().get();
    assert_eq!(next.release().unwrap(), Released::Done);
    assert!(waiter.answer().expect("it outlasts the outage") > token.max(second));
    drop(holder);
    assert_clean(member(&ensemble, leader));
}

/// Without most of the members nothing is granted, and everything goes on when they are back.
fn two_members_killed(kind: ZooKeeperKind) {
    let ensemble = start(kind);
    let leader = ensemble.leader(&[]).unwrap();
    let keeper = open(&ensemble.url(leader), SHORT);
    let witness = Witness::new(true);
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let others = [1, 2].map(|step| member(&ensemble, leader + step));
    others.iter().for_each(|other| other.kill());
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
    let error = keeper.try_lock("b").unwrap_err();
    assert!(kinds.contains(&error.kind()), "{error:?}");
    let admin = keeper.admin().unwrap();
    let error = admin.examine(SystemClock.now() + Duration::from_secs(2));
    assert!(kinds.contains(&error.unwrap_err().kind()));
    // Each of them waits for the other one.
    thread::scope(|scope| {
        for other in others {
            scope.spawn(|| other.restart().unwrap());
        }
    });
    let next = keeper.lock("a").unwrap();
    witness.enter(&next);
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    assert_clean(member(&ensemble, leader));
}
