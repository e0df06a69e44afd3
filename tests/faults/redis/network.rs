//! Lost messages whose outcome only Redis can tell.

use std::thread;
use std::time::Duration;

use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, LockName, Mode, Released};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, cases, until};

use super::Case;
use super::store::{keys_left, listening, open, start, start_waiter};
use crate::common::{Keepers as _, WAIT_LIMIT, Witness, assert_closed, cancel_after};

pub(super) const CASES: &[Case] = cases![
    messages_lost_while_scripts_are_new,
    lease_and_reply_of_its_release_lost,
    grant_without_a_reply_is_released,
    cancelled_wait_ends_without_a_connection,
    dead_waiter_beside_pattern_subscriber,
    writer_that_could_not_leave_keeps_no_reader_out,
    listener_stays_connected_in_silence,
];

/// The server does not run a script that it does not have. So a lost request with a new script was
/// never carried out, and the repeated release proves that it freed the name.
fn messages_lost_while_scripts_are_new(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    // A release is repeated for 2 s, so one without a reply has to end before.
    let keys = "ttl=60s&response_timeout=1500ms&wait=30s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "");
    let warm = server.lock_after_waiting(&keeper, &rival);
    // Not dropped: a release that is not over would meet the fault.
    warm.release().unwrap();
    for fault in [
        Fault::DropRequests,
        Fault::DropReplies,
        Fault::CutReplyAfter(0),
        Fault::CutReplyAfter(2),
    ] {
        until("the repeated release is in time", || {
            server.command(&["SCRIPT", "FLUSH", "SYNC"]).unwrap();
            proxy.once("EVALSHA", fault);
            let guard = keeper.lock("a").unwrap();
            assert!(rival.try_lock("a").unwrap().is_none());
            proxy.once("EVALSHA", fault);
            guard.renew().unwrap();
            assert!(guard.is_held());
            proxy.once("EVALSHA", fault);
            let released = guard.release();
            proxy.set(Fault::Pass);
            match released {
                Ok(released) => assert_eq!(released, Released::Done),
                // A busy machine may take longer than a release may.
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
                    server.command(&["DEL", "lockkeeper:{default:a}"]).unwrap();
                    return false;
                }
            }
            assert_eq!(keys_left(&server), Vec::<String>::new());
            true
        });
    }
    drop((keeper, rival));
    server.assert_clean();
    assert_closed(&proxy);
}

/// The release finds nothing to release, and its reply is lost. The repeated release is no proof
/// that the first one succeeded, neither the holder's nor the operator's.
fn lease_and_reply_of_its_release_lost(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=60s&response_timeout=1500ms";
    let rival = open(&server.url(), "");
    for is_granted_again in [false, true] {
        for fault in [Fault::DropReplies, Fault::CutReplyAfter(0)] {
            // A keeper that has lost a reply verifies its leases, and a renewal would meet the fault.
            let keeper = open(&server.url_via(proxy.addr()), keys);
            let warm = server.lock_after_waiting(&keeper, &rival);
            warm.release().unwrap();
            let admin = keeper.admin().unwrap();
            let soon = SystemClock.now() + WAIT_LIMIT;
            let (seen, next, error) = loop {
                let held = keeper.lock("a").unwrap();
                let seen = admin.held(Some(held.name()), soon).unwrap();
                // Of this there is no notice.
                server.command(&["DEL", "lockkeeper:{default:a}"]).unwrap();
                let next = is_granted_again.then(|| rival.lock("a").unwrap());
                proxy.once("EVALSHA", fault);
                match held.release() {
                    Err(error) => break (seen, next, error),
                    // The keeper has only begun to listen, and the verification that belongs to that met
                    // the fault.
                    Ok(found) => assert_eq!(found, Released::AlreadyLost),
                }
            };
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            let seen = seen.first().unwrap();
            proxy.once("EVALSHA", fault);
            let error = admin.force_release(seen, soon).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            if let Some(next) = next {
                assert!(next.is_held());
                assert_eq!(next.release().unwrap(), Released::Done);
            }
        }
    }
    drop(rival);
    server.assert_clean();
}

/// The acquisition is cancelled, or its wait is over, before the reply comes. Of a permit, the slot is not known either.
fn grant_without_a_reply_is_released(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let rival = open(&server.url(), "");
    let permit = AcquireOptions::new().mode(Mode::Permit { limit: 2 });
    let other = rival.acquire("p", &permit).unwrap().unwrap();
    // The lease would outlast the limits of this test.
    let keys = "ttl=120s&response_timeout=3s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    keeper.lock("a").unwrap().release().unwrap();
    let admin = rival.admin().unwrap();
    let held = |name: &str| {
        let name = LockName::new(name).unwrap();
        let held = admin.held(Some(&name), SystemClock.now() + WAIT_LIMIT);
        held.unwrap().len()
    };
    let exclusive = AcquireOptions::new();
    let short = exclusive.clone().wait(Duration::from_millis(300));
    for (name, options, ends_as) in [
        ("a", exclusive.wait_forever(), ErrorKind::Cancelled),
        ("a", short, ErrorKind::Unknown),
        ("p", permit.wait_forever(), ErrorKind::Cancelled),
    ] {
        let cancel = CancelToken::new();
        let options = options.cancel(&cancel);
        let (before, lost) = (held(name), proxy.counts().dropped_replies);
        proxy.once("EVALSHA", Fault::DropReplies);
        thread::scope(|scope| {
            let acquiring = scope.spawn(|| keeper.acquire(name, &options));
            assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.dropped_replies > lost));
            if ends_as == ErrorKind::Cancelled {
                assert_eq!(held(name), before + 1);
                cancel.cancel();
            }
            let error = acquiring.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), ends_as, "{error:?}");
        });
        until("the lease is released", || held(name) == before);
    }
    drop((other, rival, keeper));
    server.assert_clean();
}

/// To open a connection may take longer than the limits of this test.
fn cancelled_wait_ends_without_a_connection(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let holder = open(&server.url(), "ttl=10m");
    let held = holder.lock("a").unwrap();
    // With a grace, a new connection asks the server for its start.
    let keys = "connect_timeout=5m&restart_grace=1ms";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    cancel_after(&keeper, "a", AcquireOptions::new(), || {
        until("it waits", || server.queue_length("a") == 1);
        let before = proxy.counts().accepted;
        proxy.set(Fault::Dark);
        proxy.cut();
        // One is the listener's.
        assert!(proxy.wait_for(WAIT_LIMIT, |counts| counts.accepted >= before + 2));
    });
    proxy.set(Fault::Pass);
    drop((held, holder, keeper));
}

/// A client that subscribes to a pattern of all channels receives what is published to a dead waiter.
/// So a notification with a receiver does not prove that the waiter lives.
fn dead_waiter_beside_pattern_subscriber(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut monitor = server.client().unwrap();
    monitor.command(&["PSUBSCRIBE", "lockkeeper:*"]).unwrap();
    let witness = Witness::new(true);
    let holder = open(&server.url(), "");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let wait = Duration::from_secs(20);
    let waiting = start_waiter(&server.url_via(proxy.addr()), "", wait, &witness);
    until("the waiter is queued", || server.queue_length("a") == 1);
    until("the holder listens, too", || listening(&server) == 2);
    proxy.refuse();
    until("the server has noticed that the waiter is gone", || {
        listening(&server) == 1
    });
    let token = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    // The name is free, and not kept for the dead waiter.
    assert_eq!(keys_left(&server), Vec::<String>::new());
    proxy.accept().unwrap();
    assert!(
        waiting
            .answer()
            .expect("the waiter is granted it in the end")
            > token
    );
    drop((holder, monitor));
    server.assert_clean();
}

/// Its process lives on.
fn writer_that_could_not_leave_keeps_no_reader_out(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let [holder, other] = ["ttl=10m"; 2].map(|keys| open(&server.url(), keys));
    let writer = open(&server.url_via(proxy.addr()), "ttl=10m");
    let reading = holder.lock_shared("a").unwrap();
    cancel_after(&writer, "a", AcquireOptions::new(), || {
        until("it waits", || server.queue_length("a") == 1);
        proxy.set(Fault::Dark);
    });
    proxy.cut();
    proxy.set(Fault::Pass);
    until("it listens again", || listening(&server) == 2);
    assert_eq!(server.queue_length("a"), 1);
    until("others read", || {
        other.try_lock_shared("a").unwrap().is_some()
    });
    assert!(reading.is_held());
    drop((reading, holder, other, writer));
    server.assert_clean();
}

/// A listener that has heard nothing for a while asks the server, on the same connection.
fn listener_stays_connected_in_silence(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "ttl=10m");
    let guard = keeper.lock("a").unwrap();
    until("it listens", || listening(&server) == 1);
    let listener = || {
        let list = ["CLIENT", "LIST", "TYPE", "pubsub"];
        let listed = server.command(&list).unwrap().text().unwrap();
        listed.split(' ').next().map(str::to_owned)
    };
    let asked = || {
        let commands = server.info("commandstats").unwrap();
        let of_subscribe = &commands["cmdstat_subscribe"];
        of_subscribe.split(',').next().map(str::to_owned)
    };
    let (before, first) = (listener(), asked());
    until("it asks again", || asked() != first);
    assert_eq!(listener(), before);
    drop((guard, keeper));
    server.assert_clean();
}
