//! Three members of which one dies, stops, or is cut off from the others.

use lockkeeper::admin::{Finding, Severity};
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, Released};
use lockkeeper_testkit::{EtcdCluster, EtcdKind, EtcdOptions, TestServer as _, until};

use super::Case;
use crate::common::cluster::{
    KEYS, assert_clean, contention_while_leaders_change, end, holder_in_minority, kill,
    member_fails, open, stop, two_members_killed, waiter_in_minority,
};
use crate::common::{WAIT_LIMIT, Waiter, Witness};

pub(super) const CASES: &[Case] = &[
    ("leader_killed", |kind| member_fails(&start(kind), 0, kill)),
    ("leader_stopped", |kind| member_fails(&start(kind), 0, stop)),
    ("leader_cut_off", |kind| {
        member_fails(&start(kind), 0, EtcdCluster::cut_off);
    }),
    ("leader_ended", |kind| member_fails(&start(kind), 0, end)),
    ("leadership_moved", |kind| {
        member_fails(&start(kind), 0, |cluster, leader| {
            cluster.move_leadership(leader).unwrap();
        });
    }),
    ("contention_while_leaders_change", leaders_change),
    ("learner_is_left", learner_is_left),
    ("holder_in_minority", |kind| {
        holder_in_minority(&start(kind), 0);
    }),
    ("waiter_in_minority", |kind| {
        waiter_in_minority(&start(kind), |released| match released {
            Ok(found) => assert_eq!(found, Released::Done),
            // The member that is back may call for an election, and a busy machine takes long for that.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
        });
    }),
    ("two_members_killed", |kind| {
        two_members_killed(&start(kind), |keeper| {
            let admin = keeper.admin().unwrap();
            until("doctor finds that there is no leader", || {
                let found = admin.examine(SystemClock.now() + WAIT_LIMIT);
                let is_it =
                    |it: &Finding| it.topic == "leader" && it.severity == Severity::Unusable;
                found.is_ok_and(|found| found.iter().any(is_it))
            });
        });
    }),
];

fn start(kind: EtcdKind) -> EtcdCluster {
    EtcdCluster::start(kind, &EtcdOptions::new()).unwrap()
}

/// The leadership moves, and leaders end in order. Each of the other locks is a proposal of its own, so that the leader has
/// some when it hands over.
fn leaders_change(kind: EtcdKind) {
    let cluster = start(kind);
    contention_while_leaders_change(&cluster, (8, 12), |round, leader, go_on| {
        if round % 4 == 3 {
            cluster.member(leader).end().unwrap();
            cluster.member(leader).restart().unwrap();
        } else {
            cluster.move_leadership(leader).unwrap();
        }
        go_on();
    });
}

/// A learner serves no client, and a keeper that comes to it goes on to the next member.
fn learner_is_left(kind: EtcdKind) {
    let options = EtcdOptions::new();
    let lax = options.clone().arg("--strict-reconfig-check=false");
    let cluster = EtcdCluster::start(kind, &lax).unwrap();
    let learner = cluster.add_learner(&options).unwrap();
    let leader = cluster.leader(&[]).unwrap();
    let [first, last] = [leader + 1, leader].map(|number| cluster.member(number));
    let url = format!("etcd://{},{},{}", first.addr(), learner.addr(), last.addr());
    let witness = Witness::new(true);
    let [holder, rival] = [&url, &cluster.url(leader)].map(|url| open(url, KEYS));
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    first.kill();
    until("the holder passes the learner", || held.renew().is_ok());
    assert!(rival.try_lock("a").unwrap().is_none());
    let waiter = Waiter::start(open(&url, KEYS), WAIT_LIMIT, &witness);
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
    assert_clean(cluster.member(leader));
}
