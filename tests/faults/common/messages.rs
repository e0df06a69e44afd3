//! Messages that are lost or late, and a network that is silent.

use std::thread;
use std::time::Duration;

use lockkeeper::{ErrorKind, LockGuard, Released, WaitOutcome};
use lockkeeper_testkit::{Facts, Fault, Proxy, StoreKind, until};

use super::contended::{lost, through_all_faults};
use super::{Case, Keepers as _, WAIT_LIMIT, Witness, assert_closed, start};

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
        ("contended_through_all_faults", contended_through_all_faults),
        ("opening_without_a_reply", opening_without_a_reply),
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
    // On a busy machine, no request of a release comes in time, and its lease ends by the ttl.
    let rival = server.open("wait=90s");
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
        let lock = || with_fault(&proxy, request, fault, || keeper.lock("a").unwrap());
        let guard = acquired(met(lock));
        assert!(guard.is_held());
        assert!(rival.try_lock("a").unwrap().is_none());
        match met(|| with_fault(&proxy, request, fault, || guard.renew())) {
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
                // A busy machine may have no time to repeat it.
                let released = (0..5).find_map(|_| release()?.ok());
                assert_eq!(released, Some(Released::Done));
            } else {
                // On a busy machine, the verification after the last fault comes late, and may meet this one instead.
                let error = (0..5).find_map(|_| release()?.err());
                let error = error.expect("a release without a reply is unknown");
                // The repeated release found nothing, which does not prove that the first one succeeded.
                assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            }
            rival.try_lock("a").unwrap().expect("it was released")
        } else {
            if let Err(error) = met(release) {
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

/// Loses the next message of a request that contains these bytes while `call` runs. `None` if no message was lost: on a
/// busy machine the call may give a reply up before the proxy has it.
fn with_fault<T>(
    proxy: &Proxy,
    request: &str,
    fault: Fault,
    call: impl FnOnce() -> T,
) -> Option<T> {
    let before = lost(&proxy.counts());
    proxy.once(request, fault);
    let result = call();
    let is_met = lost(&proxy.counts()) > before;
    proxy.set(Fault::Pass);
    is_met.then_some(result)
}

/// Repeats a call until it has met its fault.
fn met<T>(mut call: impl FnMut() -> Option<T>) -> T {
    let result = (0..5).find_map(|_| call());
    result.expect("a message was lost")
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
    // On a busy machine, a session of one second ends between two requests.
    let slow = server.open_via(&proxy, "ttl=3s&response_timeout=30s&wait=12s");
    let rival = server.open("wait=30s");
    drop(slow.lock("a").unwrap());
    let witness = Witness::new(true);
    proxy.once(
        server.facts().lock_request,
        Fault::DelayReplies(Duration::from_secs(9)),
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
    assert!(proxy.counts().held > 0, "a renewal was sent in the dark");
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

/// Loses each reply of an opening in turn. It grants nothing, so it is never in doubt.
fn opening_without_a_reply(kind: StoreKind) {
    let server = start(kind);
    let is_open = (0..100).any(|passing| {
        let proxy = server.start_proxy();
        for _ in 0..passing {
            proxy.once("", Fault::Pass);
        }
        proxy.once("", Fault::DropReplies);
        let keys = "response_timeout=1s&connect_timeout=1s";
        let opened = lockkeeper::open(&server.url_with(proxy.addr(), keys));
        if let Err(error) = &opened {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        }
        opened.is_ok() && lost(&proxy.counts()) == 0
    });
    assert!(is_open, "an opening has fewer replies");
}
