//! Sessions that end, and nodes that are made anew.

use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, ErrorKind, LockKeeper, Released, WaitOutcome};
use lockkeeper_testkit::{
    Fault, Proxy, TestServer, ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer, cases, until,
};

use super::Case;
use crate::common::{Keepers as _, WAIT_LIMIT, assert_unreadable, cancel_after, opened, share};

pub(super) const CASES: &[Case] = cases![
    session_that_ended_loses_all_its_leases_at_once,
    time_outs_that_the_server_changes_are_errors,
    server_without_its_data_is_followed,
    lost_replies_leave_no_session_and_no_lock,
    cancelled_waits_end_without_a_connection,
    names_used_once_leave_nothing,
    entries_of_other_programs_concern_their_own_names,
];

fn open(server: &ZooKeeperServer, keys: &str) -> LockKeeper {
    opened(&format!("{}/?{keys}", server.url()))
}

fn sessions(server: &ZooKeeperServer) -> usize {
    let mut client = server.client().unwrap();
    let sessions = client.children("/lockkeeper/default/sessions");
    sessions.unwrap().len()
}

fn session_that_ended_loses_all_its_leases_at_once(kind: ZooKeeperKind) {
    let server = share::<ZooKeeperServer>(kind);
    let keeper = open(&server, "ttl=10m");
    let names = ["a", "b", "c"];
    let held = names.map(|name| keeper.lock(name).unwrap());
    server.end_lease("default", "a").unwrap();
    for guard in &held {
        // Far sooner than a renewal is due.
        assert_eq!(guard.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    }
    for (name, lost) in names.iter().zip(&held) {
        let next = keeper.lock(*name).unwrap();
        assert!(next.token() > lost.token());
    }
}

fn time_outs_that_the_server_changes_are_errors(kind: ZooKeeperKind) {
    let options = ZooKeeperOptions::new().line("maxSessionTimeout=5000");
    let server = ZooKeeperServer::start(kind, &options).unwrap();
    let keeper = open(&server, "ttl=6s");
    let error = keeper.lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTtl, "{error:?}");
    assert!(error.to_string().contains("maxSessionTimeout"), "{error}");
    let error = lockkeeper::open(&format!("{}/?ttl=300ms", server.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TtlTooShort, "{error:?}");
    drop(keeper);
    let keeper = open(&server, "ttl=5s&response_timeout=4s");
    assert_eq!(keeper.lock("a").unwrap().release().unwrap(), Released::Done);
}

/// The new server knows less than the program has seen of the former.
fn server_without_its_data_is_followed(kind: ZooKeeperKind) {
    let server = share::<ZooKeeperServer>(kind);
    let keeper = open(&server, "ttl=10s&wait=30s");
    let lost = keeper.lock("a").unwrap();
    for number in 0..20 {
        drop(keeper.lock(format!("other-{number}")).unwrap());
    }
    server.restart_empty().unwrap();
    assert_eq!(lost.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    let next = keeper.lock("a").unwrap();
    assert!(next.token() > lost.token());
}

/// A node or a session of a request without a reply stays no longer than the ttl.
fn lost_replies_leave_no_session_and_no_lock(kind: ZooKeeperKind) {
    let server = share::<ZooKeeperServer>(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = format!(
        "zookeeper://{}/?ttl=2s&wait=30s&response_timeout=1s",
        proxy.addr()
    );
    // The node of a session, and the entry of a lock.
    for marker in ["/sessions/", "lock%2Fa"] {
        let keeper = lockkeeper::open(&url).unwrap();
        proxy.once(marker, Fault::DropReplies);
        let held = keeper.lock("a").unwrap();
        assert!(held.is_held());
        assert_eq!(held.release().unwrap(), Released::Done);
        drop(keeper);
        until("nothing is left", || {
            server.leftovers().unwrap().is_empty() && sessions(&server) == 0
        });
    }
}

/// To open a connection may take longer than the limits of this test.
fn cancelled_waits_end_without_a_connection(kind: ZooKeeperKind) {
    let server = share::<ZooKeeperServer>(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let holder = open(&server, "ttl=10m");
    let held = holder.lock("a").unwrap();
    let keys = "ttl=10m&connect_timeout=5m&response_timeout=5m";
    let keeper = opened(&format!("zookeeper://{}/?{keys}", proxy.addr()));
    let cancelled_after = |fault: &dyn Fn()| {
        cancel_after(&keeper, "a", AcquireOptions::new(), fault);
        proxy.set(Fault::Pass);
        until("its place is gone", || server.queue_length("a") == 0);
    };
    // The attempt has a session then, and the place in the queue opens another one. Only a greeting for a new session has so
    // many zeros, as its password. Without an answer, a connect is repeated after 500 ms, then 1 s, and so on.
    assert!(keeper.try_lock("a").unwrap().is_none());
    (0..9).for_each(|_| proxy.once([0; 16], Fault::DropRequests));
    cancelled_after(&|| {
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.dropped_requests > 0));
        proxy.set(Fault::Dark);
    });
    // A waiter reads the entry after the cut. If its session was not kept for 500 ms, it keeps that first.
    for delay in [0, 700].map(Duration::from_millis) {
        cancelled_after(&|| {
            until("it waits", || server.queue_length("a") == 1);
            thread::sleep(delay);
            let before = proxy.counts().accepted;
            proxy.set(Fault::Dark);
            proxy.cut();
            assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.accepted >= before + 2));
        });
    }
    assert_eq!(held.release().unwrap(), Released::Done);
    assert_eq!(keeper.lock("a").unwrap().release().unwrap(), Released::Done);
    drop((holder, keeper));
    server.assert_clean();
}

fn names_used_once_leave_nothing(kind: ZooKeeperKind) {
    let server = share::<ZooKeeperServer>(kind);
    let entries = || {
        let mut client = server.client().unwrap();
        client.children("/lockkeeper/default/entries").unwrap()
    };
    let hostile = [
        "..",
        "zookeeper",
        "a/b",
        "\u{1}\u{fffd}",
        "\u{10ffff}\u{d7ff}",
    ];
    // On a busy machine, the time of a keeper's end may be too short.
    until("only what a namespace has once is left", || {
        let keeper = open(&server, "ttl=10s");
        for number in 0..100 {
            drop(keeper.lock(format!("once-{number}")).unwrap());
        }
        for name in hostile {
            drop(keeper.lock(name).unwrap());
        }
        drop(keeper.lock("x".repeat(512)).unwrap());
        keeper.close();
        drop(keeper);
        let is_once = |name: &String| name.starts_with("namespace");
        entries().iter().all(is_once) && sessions(&server) == 0
    });
}

fn entries_of_other_programs_concern_their_own_names(kind: ZooKeeperKind) {
    let server = share::<ZooKeeperServer>(kind);
    let keeper = open(&server, "ttl=10m");
    let names = ["text", "bytes"];
    for name in names {
        drop(keeper.lock(name).unwrap());
    }
    let mut client = server.client().unwrap();
    for (name, value) in names.iter().zip([&b"hello"[..], b"0000000000\xff"]) {
        let path = format!("/lockkeeper/default/entries/lock%2F{name}");
        assert!(client.set(&path, value).unwrap());
    }
    assert_unreadable(&keeper, &names);
}
