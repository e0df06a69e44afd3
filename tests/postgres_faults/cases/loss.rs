//! Sessions that end while no renewal is due: their guards are lost all the same.

use std::thread;

use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::{LockGuard, LockKeeper, LockName, Released, WaitOutcome};
use lockkeeper_testkit::{PostgresKind, Proxy, until};

use super::Case;
use super::store::{Server, assert_clean, holders, kill, open, start, waiters};
use crate::faults::{FaultServer, WAIT_LIMIT};

pub(super) const CASES: &[Case] = &[
    ("killed_sessions_are_lost_at_once", |kind| {
        let server = start(kind);
        lose_all(&server, |_| {
            let sessions = holders(&server);
            assert!(sessions.len() > 1, "{sessions:?}");
            sessions.iter().for_each(|session| kill(&server, *session));
        });
    }),
    ("cut_connections_are_lost_at_once", |kind| {
        lose_all(&start(kind), Proxy::cut);
    }),
    ("restarted_server_is_noticed_at_once", |kind| {
        let server = start(kind);
        lose_all(&server, |_| server.restart().unwrap());
    }),
    (
        "forced_release_is_noticed_at_once",
        forced_release_is_noticed_at_once,
    ),
];

/// The next renewal is 20 minutes away.
const KEYS: &str = "ttl=1h&pool_size=4&wait=30s";

/// Locks one name on a session of its own, which waited for it, and others on shared sessions.
fn lock_all(server: &Server, keeper: &LockKeeper) -> [LockGuard; 6] {
    let rival = open(&server.url(), "");
    let held = rival.lock("waited").unwrap();
    let waited = thread::scope(|scope| {
        let waits = scope.spawn(|| keeper.lock("waited").unwrap());
        until("the keeper waits", || waiters(server, "waited").len() == 1);
        assert_eq!(held.release().unwrap(), Released::Done);
        waits.join().unwrap()
    });
    let [b, c, d, e, f] = ["b", "c", "d", "e", "f"].map(|name| keeper.lock(name).unwrap());
    [waited, b, c, d, e, f]
}

/// Ends all sessions of a keeper, and checks that all guards are lost.
#[track_caller]
fn lose_all(server: &Server, end: impl FnOnce(&Proxy)) {
    let proxy = Proxy::new(server.addr()).unwrap();
    let keeper = open(&server.url_via(proxy.addr()), KEYS);
    let guards = lock_all(server, &keeper);
    end(&proxy);
    for guard in &guards {
        assert_eq!(guard.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    }
    for guard in guards {
        let (name, token) = (guard.name().to_string(), guard.token());
        assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
        let next = keeper.lock(name.as_str()).unwrap();
        assert!(next.token() > token, "{name}");
    }
    drop(keeper);
    assert_clean(server);
}

fn forced_release_is_noticed_at_once(kind: PostgresKind) {
    let server = start(kind);
    let [keeper, operator] = [(); 2].map(|()| open(&server.url(), KEYS));
    let held = keeper.lock("a").unwrap();
    let admin = operator.admin().unwrap();
    let soon = || SystemClock.now() + WAIT_LIMIT;
    let name = LockName::new("a").unwrap();
    let shown = admin.held(Some(&name), soon()).unwrap().remove(0);
    assert!(admin.force_release(&shown, soon()).unwrap());
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(operator.lock("a").unwrap().token() > held.token());
    drop((held, keeper, operator));
    assert_clean(&server);
}
