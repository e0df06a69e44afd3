//! A member of a cluster dies, stops, or is cut off from the others.

use std::thread;
use std::time::Duration;

use lockkeeper::{Error, ErrorKind, LockGuard, LockKeeper, Released, WaitOutcome};
use lockkeeper_testkit::{Cluster, Member, NetworkedMember, until};

use super::contended::repeat_during;
use super::{WAIT_LIMIT, Waiter, Witness, opened};

/// An election takes a second or two, and longer on a busy machine: the guard outlives it, which on Consul is lost after
/// half of the ttl.
pub(crate) const KEYS: &str = "ttl=60s&response_timeout=3s&connect_timeout=3s&wait=30s";
/// The holder's lease does not outlive what happens.
const SHORT: &str = "ttl=3s&response_timeout=1s&connect_timeout=1s&wait=25s";
/// No election concerns the holder.
const PATIENT: &str = "ttl=20s&response_timeout=5s&wait=25s";

pub(crate) fn open(url: &str, keys: &str) -> LockKeeper {
    opened(&format!("{url}/?{keys}"))
}

fn wait_for_waiter(asked: &impl Member) {
    until("the waiter is queued", || {
        asked.waiters("default", "a").unwrap() == 1
    });
}

pub(crate) fn assert_clean(asked: &impl Member) {
    until("no lock is left", || asked.leftovers().unwrap().is_empty());
}

/// A lock outlives the loss of the member by which its holder had reached the cluster: the leader, or one `after` it.
pub(crate) fn member_fails<M: Member>(
    cluster: &Cluster<M>,
    after: usize,
    fault: impl FnOnce(&Cluster<M>, usize),
) {
    let failing = (cluster.leader(&[]).unwrap() + after) % 3;
    let [holder, waiter] = [0, 0].map(|_| open(&cluster.url(failing), KEYS));
    let rival = open(&cluster.url(failing + 1), KEYS);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiter = Waiter::start(waiter, WAIT_LIMIT, &witness);
    wait_for_waiter(cluster.member(failing));
    fault(cluster, failing);
    let leader = cluster.leader(&[failing]).unwrap();
    until("the holder reaches the others", || held.renew().is_ok());
    // After an election, a busy machine may reply too late.
    until("the rival sees that the lock is held", || {
        let answer = rival.try_lock("a");
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        answer.is_ok()
    });
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiter.answer().expect("it is granted") > token);
    let last = rival.lock("a").unwrap();
    witness.enter(&last);
    assert_eq!(last.release().unwrap(), Released::Done);
    drop((holder, rival));
    assert_clean(cluster.member(leader));
}

/// Kills a member: a fault for [`member_fails`].
pub(crate) fn kill<M: Member>(cluster: &Cluster<M>, member: usize) {
    cluster.member(member).kill();
}

/// Stops a member, which hangs then: a fault for [`member_fails`].
pub(crate) fn stop<M: Member>(cluster: &Cluster<M>, member: usize) {
    cluster.member(member).stop().unwrap();
}

/// Ends a member as an operator does: a fault for [`member_fails`].
pub(crate) fn end<M: Member>(cluster: &Cluster<M>, member: usize) {
    cluster.member(member).end().unwrap();
}

/// Every acquisition with time to wait is granted while leaders change, beside as many other locks as `beside`. `change`
/// gets the number of the round, that of the leader, and what waits for further grants.
pub(crate) fn contention_while_leaders_change<M: Member>(
    cluster: &Cluster<M>,
    (rounds, beside): (usize, usize),
    change: impl Fn(usize, usize, &dyn Fn()),
) {
    let keepers = &[0, 1, 2].map(|first| open(&cluster.url(first), KEYS));
    let witness = &Witness::new(true);
    let work = |number: usize| {
        let keeper = &keepers[number % 3];
        move || match number.checked_sub(keepers.len()) {
            None => witness.pass(keeper.lock("a").unwrap()),
            Some(other) => drop(keeper.lock_shared(format!("other-{other}")).unwrap()),
        }
    };
    let works = (0..keepers.len() + beside).map(work);
    repeat_during(works, witness, |go_on| {
        for round in 0..rounds {
            change(round, cluster.leader(&[]).unwrap(), go_on);
        }
    });
}

/// Asserts that a former holder sees that the lock is held by the next one, which then releases it.
pub(crate) fn assert_replaced(former: &LockKeeper, held: LockGuard, next: LockGuard) {
    let _ = held.release();
    until("the former holder sees that the lock is held", || {
        let answer = former.try_lock("a");
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        answer.is_ok()
    });
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
}

/// Asserts that nothing is granted without most of the members.
fn assert_none_granted(keeper: &LockKeeper) {
    let error = keeper.try_lock("b").unwrap_err();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
    assert!(kinds.contains(&error.kind()), "{error:?}");
}

/// The holder reaches only a member that is cut off, the leader or one `after` it: the holder knows of its loss before the
/// others grant the name, though that member may still answer for a while.
pub(crate) fn holder_in_minority<M: NetworkedMember>(cluster: &Cluster<M>, after: usize) {
    let off = (cluster.leader(&[]).unwrap() + after) % 3;
    let holder = open(&cluster.url_of(off), SHORT);
    let rival = open(&cluster.url(off + 1), KEYS);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    cluster.cut_off(off);
    // The witness checks that the former holder knows of its loss by now.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(next.token() > held.token());
    assert_none_granted(&holder);
    cluster.join();
    assert_replaced(&holder, held, next);
    let again = holder.lock("a").unwrap();
    witness.enter(&again);
    drop((again, holder, rival));
    assert_clean(cluster.member(off));
}

/// The waiter reaches only a member that is cut off: it is granted the name when that is back, and delays others for a short
/// time only. `check` judges the release after that.
pub(crate) fn waiter_in_minority<M: NetworkedMember>(
    cluster: &Cluster<M>,
    check: impl FnOnce(Result<Released, Error>),
) {
    let leader = cluster.leader(&[]).unwrap();
    let off = (leader + 1) % 3;
    let holder = open(&cluster.url(leader), PATIENT);
    let witness = Witness::new(true);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiter = open(&cluster.url_of(off), SHORT);
    let waiter = Waiter::start(waiter, WAIT_LIMIT, &witness);
    wait_for_waiter(cluster.member(leader));
    cluster.cut_off(off);
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = holder.try_lock_for("a", Duration::from_secs(10)).unwrap();
    let next = next.expect("a waiter that is gone does not hold up the others");
    witness.enter(&next);
    cluster.join();
    let second = next.token().get();
    check(next.release());
    assert!(waiter.answer().expect("it outlasts the outage") > token.max(second));
    drop(holder);
    assert_clean(cluster.member(leader));
}

/// Without most of the members nothing is granted, and everything goes on when they are back. Meanwhile, `look` asks for
/// findings.
pub(crate) fn two_members_killed<M: Member>(cluster: &Cluster<M>, look: impl FnOnce(&LockKeeper)) {
    let leader = cluster.leader(&[]).unwrap();
    let keeper = open(&cluster.url(leader), SHORT);
    let witness = Witness::new(true);
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let others = [1, 2].map(|step| cluster.member(leader + step));
    others.iter().for_each(|other| other.kill());
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert_none_granted(&keeper);
    look(&keeper);
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
    assert_clean(cluster.member(leader));
}
