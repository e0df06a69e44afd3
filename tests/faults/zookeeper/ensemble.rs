//! Three members of which one dies, stops, or is cut off from the others.

use std::time::Duration;

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, Released};
use lockkeeper_testkit::{Shared, StoreKind, TestServer as _, ZooKeeperEnsemble, ZooKeeperKind};

use super::Case;
use crate::common::cluster::{
    contention_while_leaders_change, holder_in_minority, kill, member_fails, stop,
    two_members_killed, waiter_in_minority,
};

pub(super) const CASES: &[Case] = &[
    ("leader_killed", |kind| {
        let ensemble = share(kind);
        member_fails(&ensemble, 0, kill);
        let killed = ensemble.members().iter().filter(|it| it.pid().is_none());
        killed.for_each(|it| it.restart().unwrap());
    }),
    ("leader_stopped", |kind| {
        let ensemble = share(kind);
        member_fails(&ensemble, 0, stop);
        ensemble.resume().unwrap();
    }),
    ("leader_cut_off", |kind| {
        let ensemble = share(kind);
        member_fails(&ensemble, 0, ZooKeeperEnsemble::cut_off);
        ensemble.join();
    }),
    ("contention_while_leaders_change", leaders_change),
    ("holder_in_minority", |kind| {
        holder_in_minority(&share(kind), 0);
    }),
    ("holder_at_follower_in_minority", |kind| {
        holder_in_minority(&share(kind), 1);
    }),
    ("waiter_in_minority", |kind| {
        waiter_in_minority(&share(kind), |released| {
            assert_eq!(released.unwrap(), Released::Done);
        });
    }),
    ("two_members_killed", |kind| {
        two_members_killed(&share(kind), |keeper| {
            let admin = keeper.admin().unwrap();
            let error = admin.examine(SystemClock.now() + Duration::from_secs(2));
            let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown];
            assert!(kinds.contains(&error.unwrap_err().kind()));
        });
    }),
];

/// Takes an ensemble. All members run and reach each other at the end of a case.
fn share(kind: ZooKeeperKind) -> Shared<ZooKeeperEnsemble> {
    Shared::take(StoreKind::ZooKeeperEnsemble(kind)).unwrap()
}

/// Leaders are killed, stopped and cut off.
fn leaders_change(kind: ZooKeeperKind) {
    let ensemble = share(kind);
    contention_while_leaders_change(&ensemble, (6, 0), |round, leader, go_on| {
        let member = ensemble.member(leader);
        match round % 3 {
            0 => member.kill(),
            1 => member.stop().unwrap(),
            _ => ensemble.cut_off(leader),
        }
        go_on();
        match round % 3 {
            0 => member.restart().unwrap(),
            1 => member.cont().unwrap(),
            _ => ensemble.join(),
        }
    });
}
