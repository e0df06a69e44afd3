//! A network that loses, cuts and goes dark.

use std::thread;
use std::time::Duration;

use lockkeeper::{
    AcquireOptions, CancelToken, Clock, ErrorKind, LockGuard, Released, SystemClock, WaitOutcome,
};
use lockkeeper_testkit::{Fault, Proxy, RedisKind};

use super::Case;
use super::rig::{in_line, left, nothing_left, one_more_waits, open, settled, start};
use crate::rig::{HANG, PATIENCE, Witness, through_it_all, until};

pub(super) const CASES: &[Case] = &[
    ("request_dropped", |kind| {
        lost_on_the_way(kind, Fault::DropRequests);
    }),
    ("reply_dropped", |kind| {
        lost_on_the_way(kind, Fault::DropReplies);
    }),
    ("cut_before_the_reply", |kind| {
        lost_on_the_way(kind, Fault::CutReplyAfter(0));
    }),
    ("cut_mid_reply", |kind| {
        lost_on_the_way(kind, Fault::CutReplyAfter(2));
    }),
    (
        "lost_before_the_reply_to_the_release_was",
        lost_before_the_reply_to_the_release_was,
    ),
    ("dropped_grant_is_found_again", dropped_grant_is_found_again),
    (
        "cancelled_grant_is_given_back",
        cancelled_grant_is_given_back,
    ),
    ("dead_waiter_beside_a_monitor", dead_waiter_beside_a_monitor),
    ("dark_while_held", dark_while_held),
    ("dark_while_waited_for", dark_while_waited_for),
    ("contended_through_it_all", contended_through_it_all),
];

/// A keeper by way of a proxy, and another one that sees the server as it is.
fn lost_on_the_way(kind: RedisKind, fault: Fault) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = server.url_via(proxy.addr());
    let keeper = open(&url, "ttl=20s&response_timeout=1s&wait=20s");
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    for name in ["first", "a", "a"] {
        proxy.once("EVALSHA", fault);
        let guard = keeper.lock(name).unwrap();
        assert!(guard.is_held());
        witness_for(&witness, name, &guard);
        assert!(rival.try_lock(name).unwrap().is_none());
        proxy.once("EVALSHA", fault);
        guard.renew().unwrap();
        assert!(guard.is_held());
        proxy.once("EVALSHA", fault);
        let released = guard.release();
        if fault == Fault::DropRequests || name == "first" {
            // The server did not carry out the first request: it never came, or its script was new
            // there.
            assert_eq!(released.unwrap(), Released::Done);
        } else {
            let error = released.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        }
        assert_eq!(left(&server), Vec::<String>::new());
        let next = rival.try_lock(name).unwrap().expect("it was released");
        witness_for(&witness, name, &next);
    }
    // Waited for, in every look.
    let held = rival.lock("a").unwrap();
    witness.enter(&held);
    let waiting = one_more_waits(
        &url,
        "response_timeout=300ms",
        Duration::from_secs(20),
        &witness,
    );
    until("it stands in line", || in_line(&server, "a") == 1);
    for _ in 0..3 {
        proxy.once("EVALSHA", fault);
    }
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    assert!(waiting.answer().expect("it is granted in the end") > token);
    drop((keeper, rival));
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

fn witness_for(witness: &Witness, name: &str, guard: &LockGuard) {
    if name == "a" {
        witness.enter(guard);
    }
}

/// The release finds nothing to release, and its reply is lost. The repeated release is no proof
/// that the first one succeeded, whether it is the holder's or the operator's.
fn lost_before_the_reply_to_the_release_was(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=60s&response_timeout=1s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "");
    for is_granted_again in [false, true] {
        for fault in [Fault::DropReplies, Fault::CutReplyAfter(0)] {
            let held = keeper.lock("a").unwrap();
            let admin = keeper.admin().unwrap();
            let soon = SystemClock.now() + PATIENCE;
            let seen = admin.held(Some(held.name()), soon).unwrap();
            let seen = seen.first().unwrap();
            server.command(&["FLUSHALL"]).unwrap();
            let next = is_granted_again.then(|| rival.lock("a").unwrap());
            proxy.once("EVALSHA", fault);
            let error = held.release().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            proxy.once("EVALSHA", fault);
            let error = admin.force_release(seen, soon).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            if let Some(next) = next {
                assert!(next.is_held());
                assert_eq!(next.release().unwrap(), Released::Done);
            }
        }
    }
    drop((keeper, rival));
    settled(&server);
}

fn dropped_grant_is_found_again(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=30s&response_timeout=1s&wait=20s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    drop(keeper.lock("a").unwrap());
    proxy.once("EVALSHA", Fault::DropReplies);
    let guard = thread::scope(|scope| {
        let granted = scope.spawn(|| keeper.lock("a").unwrap());
        assert!(proxy.wait_for(PATIENCE, |counts| counts.dropped_replies == 1));
        let epoch = server
            .command(&["GET", "lockkeeper:{default:a}:epoch"])
            .unwrap();
        let guard = granted.join().unwrap();
        let minted = epoch.text().unwrap().parse::<u64>().unwrap();
        // The grant that nobody heard of, and no second one.
        assert_eq!(guard.token().get() >> 7, minted);
        guard
    });
    assert!(guard.is_held());
    assert_eq!(guard.release().unwrap(), Released::Done);
    assert_eq!(left(&server), Vec::<String>::new());
    drop(keeper);
    settled(&server);
}

/// The grant's reply is lost, and then nobody wants it any more.
fn cancelled_grant_is_given_back(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    // The lease would outlive the test's patience.
    let keys = "ttl=120s&response_timeout=3s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    drop(keeper.lock("a").unwrap());
    let cancel = CancelToken::new();
    let forever = AcquireOptions::new().wait_forever().cancel(&cancel);
    proxy.once("EVALSHA", Fault::DropReplies);
    thread::scope(|scope| {
        let asks = scope.spawn(|| keeper.acquire("a", &forever));
        assert!(proxy.wait_for(PATIENCE, |counts| counts.dropped_replies == 1));
        assert_eq!(left(&server), ["lockkeeper:{default:a}"]);
        cancel.cancel();
        let error = asks.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
    });
    nothing_left(&server);
    drop(keeper);
    settled(&server);
}

/// A client that subscribes to the pattern of all channels receives what is published to a dead
/// waiter. That is no sign of life.
fn dead_waiter_beside_a_monitor(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut monitor = server.client().unwrap();
    monitor.command(&["PSUBSCRIBE", "lockkeeper:*"]).unwrap();
    let witness = Witness::new(true);
    let holder = open(&server.url(), "");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let wait = Duration::from_secs(20);
    let waiting = one_more_waits(&server.url_via(proxy.addr()), "", wait, &witness);
    until("it stands in line", || in_line(&server, "a") == 1);
    proxy.refuse();
    until("the server has noticed that the waiter is gone", || {
        let list = ["CLIENT", "LIST", "TYPE", "pubsub"];
        let text = server.command(&list).unwrap().text().unwrap();
        !text.contains(" sub=1 ")
    });
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    // The name is free, and not kept for the dead waiter.
    assert_eq!(left(&server), Vec::<String>::new());
    proxy.accept().unwrap();
    assert!(waiting.answer().expect("it is granted in the end") > token);
    drop((holder, monitor));
    settled(&server);
}

fn dark_while_held(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=6s&response_timeout=1s&connect_timeout=1s&wait=6s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    proxy.set(Fault::Dark);
    // Not before the other one knows: the witness looks.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
    assert!(next.token() > held.token());
    for answer in [
        keeper.try_lock("b"),
        keeper.try_lock_for("b", PATIENCE / 10),
    ] {
        let error = answer.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
            "{error:?}"
        );
    }
    // What was sent in the dark arrives now, and harms nobody.
    proxy.set(Fault::Pass);
    let _ = held.release();
    until("it hears that somebody holds it", || {
        let answer = keeper.try_lock("a");
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        answer.is_ok()
    });
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    let again = keeper.try_lock_for("a", PATIENCE).unwrap().unwrap();
    witness.enter(&again);
    drop((again, keeper, rival));
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

fn dark_while_waited_for(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = server.url_via(proxy.addr());
    let keys = "ttl=2s&response_timeout=300ms&connect_timeout=300ms";
    let witness = Witness::new(true);
    let holder = open(&server.url(), "ttl=20s");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let [short, long] = [3, 25].map(|wait| {
        let before = in_line(&server, "a");
        let waiting = one_more_waits(&url, keys, Duration::from_secs(wait), &witness);
        until("it stands in line", || in_line(&server, "a") == before + 1);
        waiting
    });
    proxy.set(Fault::Dark);
    let kind = short.answer().expect_err("it never heard of a grant");
    assert!(
        matches!(
            kind,
            ErrorKind::TimedOut | ErrorKind::Unavailable | ErrorKind::Unknown
        ),
        "{kind:?}"
    );
    // Those that are gone hold nobody else up.
    let first = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = holder.try_lock_for("a", HANG).unwrap().expect("it is free");
    witness.enter(&next);
    assert_eq!(next.release().unwrap(), Released::Done);
    proxy.set(Fault::Pass);
    assert!(long.answer().expect("it rides that out") > first);
    drop(holder);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

/// Many take turns while the network goes through all its faults.
fn contended_through_it_all(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    // One of them is not behind the proxy.
    let keys = "ttl=1s&response_timeout=200ms&connect_timeout=200ms&wait=1s";
    let urls = [proxy.addr(), proxy.addr(), server.addr()].map(|addr| server.url_via(addr));
    let keepers = urls.map(|url| open(&url, keys));
    through_it_all(&keepers, Duration::from_secs(1), &proxy);
    drop(keepers);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}
