//! Names that share a session, on all servers whose leases are sessions.

use std::time::Duration;

use lockkeeper::{
    AcquireOptions, ErrorKind, LeasePolicy, LockGuard, LockKeeper, Released, WaitOutcome,
};
use lockkeeper_testkit::{Fault, StoreKind, cases, until};

use super::{Case, Keepers as _, Told, WAIT_LIMIT, assert_closed, start};

pub(crate) const CASES: &[Case] = cases![
    shared_session_killed,
    shared_session_in_doubt,
    shared_session_outlives_call_cut_short,
    own_abandoned_attempt_is_not_busy,
    own_abandoned_attempt_is_no_outage,
];

/// Locks 20 names, which share two sessions: half of a pool of four.
fn lock_many(keeper: &LockKeeper) -> Vec<(String, LockGuard)> {
    let names = (0..20).map(|number| format!("name-{number}"));
    names
        .map(|name| {
            let guard = keeper.lock(name.as_str()).unwrap();
            (name, guard)
        })
        .collect()
}

/// Checks that no name that the rival can lock is held.
#[track_caller]
fn assert_exclusive(held: &[(String, LockGuard)], rival: &LockKeeper) {
    for (name, guard) in held {
        let next = rival.try_lock(name.as_str()).unwrap();
        assert!(next.is_none() || !guard.is_held(), "{name} is held twice");
    }
}

/// Releases all names, and has the rival lock each.
#[track_caller]
fn release_to(held: Vec<(String, LockGuard)>, rival: &LockKeeper) {
    for (name, guard) in held {
        let was_held = guard.is_held();
        let token = guard.token();
        match guard.release() {
            Ok(Released::Done) => assert!(was_held, "{name}"),
            Ok(Released::AlreadyLost) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
        }
        let next = rival.lock(name.as_str()).unwrap();
        assert!(next.token() > token, "{name}");
    }
}

fn shared_session_killed(kind: StoreKind) {
    let server = start(kind);
    let keeper = server.open("ttl=6s&pool_size=4");
    let rival = server.open("wait=20s");
    let held = lock_many(&keeper);
    let id = server.holder_of("name-19").unwrap();
    let on_it = |name: &str| server.holder_of(name) == Some(id);
    let (theirs, others): (Vec<_>, Vec<_>) = held.into_iter().partition(|(name, _)| on_it(name));
    assert!(theirs.len() > 1 && !others.is_empty());
    server.kill_session(id).unwrap();
    for (_, guard) in &theirs {
        assert_eq!(guard.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    }
    for (name, guard) in &others {
        guard.renew().unwrap();
        assert!(guard.is_held(), "{name} was on another session");
    }
    assert_exclusive(&theirs, &rival);
    assert_exclusive(&others, &rival);
    release_to(theirs, &rival);
    release_to(others, &rival);
    drop((keeper, rival));
    server.assert_clean();
}

fn shared_session_in_doubt(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let rival = server.open("wait=20s");
    for fault in [
        Fault::DropRequests,
        Fault::DropReplies,
        Fault::CutReplyAfter(0),
    ] {
        let keys = "ttl=4s&pool_size=4&wait=20s";
        let keeper = server.open_via(&proxy, keys);
        let mut held = lock_many(&keeper);
        let (name, guard) = held.pop().unwrap();
        let id = server.holder_of(&name);
        let theirs = held.iter().filter(|(name, _)| server.holder_of(name) == id);
        let theirs: Vec<_> = theirs.map(|(_, guard)| guard.lost_signal()).collect();
        proxy.once(format!("default:{name}"), fault);
        let _ = guard.release();
        if matches!(fault, Fault::CutReplyAfter(_)) {
            // The server frees all names of the session at once, and the next renewals notice.
            for guard in &theirs {
                assert_eq!(guard.wait(WAIT_LIMIT), WaitOutcome::Lost);
            }
        }
        assert_exclusive(&held, &rival);
        release_to(held, &rival);
        drop(rival.lock(name.as_str()).unwrap());
        // The keeper can lock again, too.
        drop(keeper.lock(name.as_str()).unwrap());
    }
    drop(rival);
    server.assert_clean();
    assert_closed(&proxy);
}

/// A call about one name may be cut short by the deadline of its lease. The other names of the session
/// stay held.
fn shared_session_outlives_call_cut_short(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let keeper = server.open_via(&proxy, "pool_size=2");
    let ttl = Duration::from_secs(9);
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let [old, kept] = ["old", "kept"].map(|name| keeper.acquire(name, &fixed).unwrap().unwrap());
    assert_eq!(server.holder_of("old"), server.holder_of("kept"));
    assert_eq!(old.lost_signal().wait(ttl * 2 / 3), WaitOutcome::TimedOut);
    kept.renew().unwrap();
    proxy.set(Fault::Dark);
    old.renew().unwrap_err();
    proxy.set(Fault::Pass);
    kept.renew().unwrap();
    assert_eq!(kept.release().unwrap(), Released::Done);
    drop((old, keeper));
    server.assert_clean();
}

/// The server granted the name to an attempt of this keeper whose caller has given up.
fn own_abandoned_attempt_is_not_busy(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let keys = "ttl=60s&pool_size=4&response_timeout=2s&connect_timeout=30s";
    let keeper = server.open_via(&proxy, keys);
    // From here on names share sessions, and a second attempt uses another session than the first.
    let held = ["x", "y"].map(|name| keeper.lock(name).unwrap());
    let late = |secs| Fault::DelayReplies(Duration::from_secs(secs));
    proxy.once("default:a", late(6));
    let granted = keeper.try_lock("a").unwrap();
    let granted = granted.expect("the abandoned attempt releases it");
    assert_eq!(granted.release().unwrap(), Released::Done);
    // A wait that ends before the reply to its first attempt.
    proxy.once("default:b", late(8));
    match keeper.try_lock_for("b", Duration::from_secs(1)) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
        Ok(_) => panic!("the outcome of the first attempt was not known"),
    }
    until("the abandoned attempt releases it", || {
        server.holder_of("b").is_none()
    });
    for guard in held {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    server.assert_clean();
}

/// The server replies in time that the name is held. That the holder is an attempt of this keeper concerns that name alone.
fn own_abandoned_attempt_is_no_outage(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let keys = "ttl=60s&pool_size=4&response_timeout=30s&connect_timeout=30s";
    let (keeper, told) = Told::open(&server.url_with(proxy.addr(), keys));
    // From here on names share sessions, and a second attempt uses another session than the first.
    let held = ["x", "y"].map(|name| keeper.lock(name).unwrap());
    let before = told.counts();
    proxy.once("default:a", Fault::DelayReplies(Duration::from_secs(4)));
    // Such short waits make no outage, however busy the machine is.
    let [first, second] = [200, 400].map(|wait| {
        let locked = keeper.try_lock_for("a", Duration::from_millis(wait));
        locked.err().map(|error| error.kind())
    });
    assert_eq!(told.counts(), before);
    assert_eq!(first, Some(ErrorKind::Unknown));
    // A busy machine may leave no time for the reply that the name is held.
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unknown].map(Some);
    assert!(kinds.contains(&second), "{second:?}");
    until("the abandoned attempt releases it", || {
        server.holder_of("a").is_none()
    });
    for guard in held {
        assert_eq!(guard.release().unwrap(), Released::Done);
    }
    drop(keeper);
    server.assert_clean();
}
