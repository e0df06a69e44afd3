//! Messages that are lost, and servers that end.

use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, ErrorKind, LeasePolicy, LockGuard, Released, WaitOutcome};
use lockkeeper_testkit::{Facts, Fault, Proxy, StoreKind, TestServer, until};

use super::contended::{lost, through_all_faults};
use super::{
    Case, HANG, Keepers as _, WAIT_LIMIT, Witness, assert_closed, fake_server, refused, start,
};

pub(super) fn cases() -> Vec<Case> {
    vec![
        ("request_dropped", |kind| {
            messages_lost(kind, |_| Fault::DropRequests);
        }),
        ("reply_dropped", |kind| {
            messages_lost(kind, |_| Fault::DropReplies);
        }),
        ("cut_before_reply", |kind| {
            messages_lost(kind, |_| Fault::CutReplyAfter(0));
        }),
        ("cut_mid_reply", |kind| {
            messages_lost(kind, |facts| Fault::CutReplyAfter(facts.part_of_reply));
        }),
        ("messages_of_wait_lost", messages_of_wait_lost),
        ("reply_later_than_ttl", reply_later_than_ttl),
        ("network_dark_while_held", network_dark_while_held),
        ("network_dark_while_waiting", network_dark_while_waiting),
        ("contended_through_all_faults", contended_through_all_faults),
        ("server_restarted_while_held", |kind| {
            let server = start(kind);
            match Memory::after_restart(&*server) {
                Memory::Lost => lose_all_leases(&*server, || server.restart().unwrap()),
                Memory::Kept => keep_all_leases(&*server, || server.restart().unwrap()),
            }
        }),
        ("server_restarted_while_waiting", |kind| {
            let server = start(kind);
            let memory = Memory::after_restart(&*server);
            contend_during(&*server, memory, || server.restart().unwrap());
        }),
        ("server_killed_while_held", server_killed_while_held),
        (
            "server_stopped_past_all_deadlines",
            server_stopped_past_all_deadlines,
        ),
        ("opening_without_server", opening_without_server),
    ]
}

/// Loses a message of each acquisition, renewal and release of a keeper behind a proxy; a second keeper
/// is connected directly.
fn messages_lost(kind: StoreKind, fault: fn(Facts) -> Fault) {
    let server = start(kind);
    let facts = server.facts();
    let (fault, request) = (fault(facts), facts.lock_request);
    let outlives = !facts.ends_with_connection;
    let proxy = server.start_proxy();
    // Where a lease ends with its session, a lost session blocks the name for the ttl at most. Elsewhere
    // the ttl is long, so that no renewal in the background meets the fault.
    let ttl = if outlives { 60 } else { 6 };
    // A release is repeated for 2 s, so one without a reply has to end before.
    let keys = format!("ttl={ttl}s&response_timeout=1500ms&wait=30s");
    let keeper = server.open_via(&proxy, &keys);
    let rival = server.open("wait=30s");
    let witness = Witness::new(true);
    let acquired = |guard: LockGuard| {
        witness.enter(&guard);
        guard
    };
    // The first request of each kind may need another round trip.
    let first = acquired(server.lock_after_waiting(&keeper, &rival));
    first.renew().unwrap();
    assert_eq!(first.release().unwrap(), Released::Done);
    for _ in 0..2 {
        let guard = acquired(with_fault(&proxy, request, fault, || {
            keeper.lock("a").unwrap()
        }));
        assert!(guard.is_held());
        assert!(rival.try_lock("a").unwrap().is_none());
        match with_fault(&proxy, request, fault, || guard.renew()) {
            Ok(()) => assert!(guard.is_held()),
            Err(error) if outlives => panic!("{error:?}"),
            Err(error) if error.kind() == ErrorKind::Lost => assert!(!guard.is_held()),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        match guard.release() {
            Ok(Released::AlreadyLost) if outlives => {
                panic!("nothing ended it")
            }
            Ok(_) => {}
            // The server may not have noticed that the session has ended.
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
        }
        assert_eq!(
            acquired(rival.lock("a").unwrap()).release().unwrap(),
            Released::Done
        );

        let release = || {
            let guard = acquired(keeper.lock("a").unwrap());
            with_fault(&proxy, request, fault, || guard.release())
        };
        let next = if outlives {
            if fault == Fault::DropRequests {
                assert_eq!(release().unwrap(), Released::Done);
            } else {
                // On a busy machine, the verification after the last fault comes late, and may meet this one instead.
                let error = (0..5).find_map(|_| release().err());
                let error = error.expect("a release without a reply is unknown");
                // The repeated release found nothing, which does not prove that the first one succeeded.
                assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            }
            rival.try_lock("a").unwrap().expect("it was released")
        } else {
            if let Err(error) = release() {
                assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            }
            rival.lock("a").unwrap()
        };
        assert_eq!(acquired(next).release().unwrap(), Released::Done);
    }
    drop((keeper, rival));
    server.assert_clean();
    assert_closed(&proxy);
}

/// Loses the next message of a request that contains these bytes while `call` runs.
fn with_fault<T>(proxy: &Proxy, request: &str, fault: Fault, call: impl FnOnce() -> T) -> T {
    let before = lost(&proxy.counts());
    proxy.once(request, fault);
    let result = call();
    assert!(lost(&proxy.counts()) > before, "{fault:?} was not met");
    proxy.set(Fault::Pass);
    result
}

/// Loses the notification of a waiter, its request, or the reply.
fn messages_of_wait_lost(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let rival = server.open("ttl=20s&wait=20s");
    let witness = Witness::new(true);
    let wait = Duration::from_secs(20);
    for fault in [
        Fault::DropRequests,
        Fault::DropReplies,
        Fault::CutReplyAfter(0),
        Fault::CutReplyAfter(server.facts().part_of_reply),
    ] {
        let held = rival.lock("a").unwrap();
        witness.enter(&held);
        let keys = "ttl=3s&response_timeout=1s";
        let waiter = server.queue_waiter(proxy.addr(), keys, wait, &witness);
        let before = lost(&proxy.counts());
        proxy.set(fault);
        let token = held.token().get();
        assert_eq!(held.release().unwrap(), Released::Done);
        let met = proxy.wait_for(WAIT_LIMIT, |counts| lost(counts) > before);
        assert!(met, "{fault:?} was not met");
        proxy.set(Fault::Pass);
        assert!(waiter.answer().expect("it is granted in the end") > token);
    }
    drop(rival);
    server.assert_clean();
    assert_closed(&proxy);
}

fn reply_later_than_ttl(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let slow = server.open_via(&proxy, "ttl=1s&response_timeout=10s&wait=4s");
    let rival = server.open("wait=20s");
    drop(slow.lock("a").unwrap());
    let witness = Witness::new(true);
    proxy.once(
        server.facts().lock_request,
        Fault::DelayReplies(Duration::from_secs(3)),
    );
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let answer = slow.lock("a");
            if let Ok(guard) = &answer {
                witness.enter(guard);
            }
            answer.map(LockGuard::release)
        });
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.held == 1));
        // The server granted it to `slow`, which did not renew it.
        let taken = rival.lock("a").unwrap();
        witness.enter(&taken);
        // `slow` gets an error, a lost guard or a later grant; the witness has checked which.
        until("the late call returns", || late.is_finished());
        assert!(taken.is_held());
        assert_eq!(taken.release().unwrap(), Released::Done);
        let _ = late.join().unwrap();
    });
    drop((slow, rival));
    server.assert_clean();
}

fn network_dark_while_held(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let keys = "ttl=3s&response_timeout=1s&connect_timeout=1s&wait=3s";
    let keeper = server.open_via(&proxy, keys);
    let rival = server.open("wait=20s");
    let witness = Witness::new(true);
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    proxy.set(Fault::Dark);
    // The witness checks that the former holder knows of its loss by now.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(next.token() > held.token());
    for answer in [
        keeper.try_lock("b"),
        keeper.try_lock_for("b", Duration::from_secs(1)),
    ] {
        let error = answer.unwrap_err();
        let kinds = [ErrorKind::Unknown, ErrorKind::Unavailable];
        assert!(kinds.contains(&error.kind()), "{error:?}");
    }
    // Requests that were sent in the dark arrive now, and have no effect.
    proxy.set(Fault::Pass);
    let _ = held.release();
    until("the keeper sees that the lock is held", || {
        let answer = keeper.try_lock("a");
        assert!(!matches!(answer, Ok(Some(_))), "{answer:?}");
        answer.is_ok()
    });
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    let again = keeper.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
    witness.enter(&again);
    drop((again, keeper, rival));
    server.assert_clean();
    assert_closed(&proxy);
}

fn network_dark_while_waiting(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let keys = "ttl=2s&response_timeout=1s&connect_timeout=1s";
    let witness = Witness::new(true);
    let holder = server.open("ttl=20s");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    // The short wait begins last, since a keeper may take long to open on a busy machine.
    let [long, short] = [30, 8]
        .map(|wait| server.queue_waiter(proxy.addr(), keys, Duration::from_secs(wait), &witness));
    proxy.set(Fault::Dark);
    short.fails();
    // Waiters that are cut off block the name for their ttls at most, where the store blocks it at all.
    let first = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let wait = match server.facts().ends_with_connection {
        true => WAIT_LIMIT,
        false => HANG,
    };
    let next = holder.try_lock_for("a", wait).unwrap().expect("it is free");
    witness.enter(&next);
    assert_eq!(next.release().unwrap(), Released::Done);
    proxy.set(Fault::Pass);
    assert!(long.answer().expect("it outlasts the outage") > first);
    drop(holder);
    server.assert_clean();
    assert_closed(&proxy);
}

fn contended_through_all_faults(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let (ttl, witness) = match server.facts().ends_with_connection {
        // The witness waits for the loss of a session that was cut.
        true => (6, Witness::of_cut_sessions()),
        false => (1, Witness::new(true)),
    };
    let keys = format!("ttl={ttl}s&response_timeout=300ms&connect_timeout=300ms&wait=1s");
    let keepers = [
        server.open_via(&proxy, &keys),
        server.open_via(&proxy, &keys),
        server.open(&keys),
    ];
    through_all_faults(&keepers, Duration::from_secs(1), &proxy, &witness);
    drop(keepers);
    server.assert_clean();
    assert_closed(&proxy);
}

/// Whether the server knows its leases after a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Kept,
    Lost,
}

impl Memory {
    /// Returns whether a server knows its leases after a restart.
    fn after_restart(server: &dyn TestServer) -> Self {
        match server.facts().is_kept_by_restart {
            true => Self::Kept,
            false => Self::Lost,
        }
    }
}

/// Has one keeper hold `a` and three wait for it during the fault; then each of them is granted it.
#[track_caller]
pub(crate) fn contend_during(server: &dyn TestServer, memory: Memory, fault: impl FnOnce()) {
    let witness = Witness::new(memory == Memory::Kept);
    // Time enough for replies, whatever the fault is. A restart is not to outlast a lease that is kept.
    let ttl = if memory == Memory::Kept { 20 } else { 6 };
    let keys = &format!("ttl={ttl}s&response_timeout=10s");
    let holder = server.open(keys);
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let wait = Duration::from_secs(45);
    let waiters = server.queue_waiters::<3>(server.own_addr(), keys, wait, &witness);
    fault();
    let first = held.token();
    if memory == Memory::Lost {
        assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
        assert_eq!(held.ensure_held().unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(held.release().unwrap(), Released::AlreadyLost);
    } else {
        assert!(held.is_held());
        assert_eq!(held.release().unwrap(), Released::Done);
    }
    for waiter in waiters {
        assert!(waiter.answer().expect("it is granted in the end") > first.get());
    }
    drop(holder);
    server.assert_clean();
}

/// Checks that the next renewal notices that the server lost all leases.
#[track_caller]
pub(crate) fn lose_all_leases(server: &dyn TestServer, lose: impl FnOnce()) {
    let [holder, rival] = [(); 2].map(|()| server.open("ttl=6s"));
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed {
        ttl: Duration::from_secs(60),
    });
    let held = holder.lock("a").unwrap();
    let other = holder.acquire("b", &fixed).unwrap().unwrap();
    lose();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    // Its own deadline is 60 s away.
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
    server.assert_clean();
}

/// Checks that a fault that ends no lease is no loss.
fn keep_all_leases(server: &dyn TestServer, fault: impl FnOnce()) {
    let [holder, rival] = [(); 2].map(|()| server.open("ttl=20s"));
    let held = holder.lock("a").unwrap();
    fault();
    held.renew().unwrap();
    assert!(rival.try_lock("a").unwrap().is_none());
    let token = held.token();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = rival.lock("a").unwrap();
    assert!(next.token() > token);
    drop((next, holder, rival));
    server.assert_clean();
}

fn server_killed_while_held(kind: StoreKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let keeper = server.open("ttl=6s");
    let held = keeper.lock("a").unwrap();
    witness.enter(&held);
    let wait = Duration::from_secs(10);
    let waiter = server.queue_waiter(server.own_addr(), "", wait, &witness);
    server.kill();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert_ne!(waiter.fails(), ErrorKind::TimedOut);
    let error = keeper.try_lock("b").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    server.restart().unwrap();
    let next = keeper.lock("a").unwrap();
    witness.enter(&next);
    assert!(next.token() > held.token());
    drop((held, next, keeper));
    server.assert_clean();
}

fn server_stopped_past_all_deadlines(kind: StoreKind) {
    let server = start(kind);
    let witness = Witness::new(true);
    let holder = server.open("ttl=4s&response_timeout=1s");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let wait = Duration::from_secs(6);
    // What is granted to these waiters in the end expires with the ttl.
    let keys = "ttl=1s&response_timeout=1s";
    let waiters = server.queue_waiters::<3>(server.own_addr(), keys, wait, &witness);
    server.stop().unwrap();
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    for waiter in waiters {
        waiter.fails();
    }
    server.resume().unwrap();
    let next = holder.try_lock_for("a", WAIT_LIMIT).unwrap();
    let next = next.expect("the lease has expired");
    witness.enter(&next);
    drop((held, next, holder));
    server.assert_clean();
}

fn opening_without_server(kind: StoreKind) {
    let server = start(kind);
    let addr = server.own_addr().to_string();
    server.kill();
    let unavailable = ErrorKind::Unavailable;
    for url in urls_at(&*server, &addr) {
        refused(&url, unavailable, &[&addr, "running"]);
        let keeper = lockkeeper::open(&format!("{url}fallback=memory:")).unwrap();
        assert_eq!(keeper.backend(), "memory");
    }
    if let Some(url) = server.socket_url() {
        refused(&url, unavailable, &["/lk-"]);
    }
    // No packet returns from this address (RFC 5737); some networks say so at once.
    let [silent, _] = urls_at(&*server, "192.0.2.1:6379");
    refused(
        &format!("{silent}connect_timeout=300ms"),
        unavailable,
        &["192.0.2.1"],
    );
    let [unknown, _] = urls_at(&*server, "name.invalid");
    refused(&unknown, unavailable, &["name.invalid"]);
    // It takes the connection, and says nothing.
    let mute = fake_server(b"", b"", 0);
    for url in urls_at(&*server, &mute) {
        let url = format!("{url}connect_timeout=300ms&response_timeout=300ms");
        refused(&url, unavailable, &[&mute]);
    }
    server.restart().unwrap();
}

/// Returns the URLs of an address without and with TLS, ready for `key=value`.
pub(super) fn urls_at(server: &dyn TestServer, addr: &str) -> [String; 2] {
    [false, true].map(|tls| server.url_at(addr, tls))
}
