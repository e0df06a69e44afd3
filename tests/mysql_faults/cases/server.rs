//! The server dies, comes back, stands still, or takes no writes.

use std::time::Duration;

use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, Released, WaitOutcome};
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

use super::store::{Memory, besieged, open, settled, start, waiting_for};
use crate::rig::{PATIENCE, Waiting, Witness, until};

pub(super) fn restarted_while_held(kind: MySqlKind) {
    let server = start(kind);
    let [holder, rival] = [(); 2].map(|()| open(&server.url(), "ttl=6s"));
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_secs(60),
    });
    let held = holder.lock("a").unwrap();
    let other = holder.acquire("b", &fixed).unwrap().unwrap();
    server.restart().unwrap();
    // Its own time is not over, so it was the renewal that found it out.
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
    assert_eq!(other.renew().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!other.is_held());
    for (lost, name) in [(held, "a"), (other, "b")] {
        let next = rival.lock(name).unwrap();
        assert!(next.token() > lost.token());
        assert_eq!(lost.release().unwrap(), Released::AlreadyLost);
        assert!(next.is_held());
        assert_eq!(next.release().unwrap(), Released::Done);
    }
    drop((holder, rival));
    settled(&server);
}

pub(super) fn restarted_while_waited_for(kind: MySqlKind) {
    besieged(kind, Memory::Lost, |server| server.restart().unwrap());
}

pub(super) fn killed_for_good_while_held(kind: MySqlKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let keeper = open(&server.url(), "ttl=2s");
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let waiting = Waiting::start(&server.url(), Duration::from_secs(4), &witness);
    until("it waits", || waiting_for(&server, "a").len() == 1);
    server.kill();
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
    let kind = waiting.answer().expect_err("nobody is there to grant it");
    assert!(
        matches!(kind, ErrorKind::Unavailable | ErrorKind::Unknown),
        "{kind:?}"
    );
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    server.restart().unwrap();
    let next = keeper.lock("a").unwrap();
    witness.enter(&next);
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    settled(&server);
}

pub(super) fn stopped_past_every_deadline(kind: MySqlKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let keys = "ttl=2s";
    let holder = open(&server.url(), keys);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let waiting: Vec<_> = (1..=3)
        .map(|number| {
            let wait = Duration::from_secs(3);
            let url = format!("{}?{keys}", server.url());
            let waiting = Waiting::start(&url, wait, &witness);
            until("it waits", || waiting_for(&server, "a").len() == number);
            waiting
        })
        .collect();
    server.stop().unwrap();
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
    for waiting in waiting {
        let kind = waiting.answer().expect_err("nobody is there to grant it");
        assert!(
            matches!(
                kind,
                ErrorKind::Unavailable | ErrorKind::Unknown | ErrorKind::TimedOut
            ),
            "{kind:?}"
        );
    }
    server.cont().unwrap();
    let next = holder
        .try_lock_for("a", PATIENCE)
        .unwrap()
        .expect("it has ended");
    witness.enter(&next);
    drop((held, next, holder));
    settled(&server);
}

/// Locks are no data: a replica can grant them, too.
pub(super) fn read_only(kind: MySqlKind) {
    let options = MySqlOptions::new().config("read-only", "ON");
    let server = MySqlServer::start(kind, &options).unwrap();
    let [keeper, rival] = [(); 2].map(|()| open(&server.url(), "ttl=3s&wait=20s"));
    let held = keeper.lock("a").unwrap();
    assert!(rival.try_lock("a").unwrap().is_none());
    server.execute("SET GLOBAL read_only = OFF").unwrap();
    held.renew().unwrap();
    server.execute("SET GLOBAL read_only = ON").unwrap();
    held.renew().unwrap();
    let token = held.token();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = rival.lock("a").unwrap();
    assert!(next.token() > token);
    drop((next, keeper, rival));
    settled(&server);
}
