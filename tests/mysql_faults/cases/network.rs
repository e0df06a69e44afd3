//! Late messages, and sessions that the server keeps after the keeper has closed them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, Released, WaitOutcome};
use lockkeeper_testkit::{Counts, Fault, MySqlKind, Proxy, until};

use super::Case;
use super::store::{Server, assert_clean, holder_of, open, start, waiting_for};
use crate::faults::{FaultServer, WAIT_LIMIT, Witness, assert_closed};

pub(super) const CASES: &[Case] = &[
    ("request_later_than_wait", request_later_than_wait),
    (
        "late_replies_are_not_matched_to_later_requests",
        late_replies_are_not_matched_to_later_requests,
    ),
    ("renewal_later_than_ttl", renewal_later_than_ttl),
    (
        "own_half_open_session_is_not_busy",
        own_half_open_session_is_not_busy,
    ),
    (
        "own_half_open_wait_is_not_busy",
        own_half_open_wait_is_not_busy,
    ),
];

fn request_later_than_wait(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=1s&wait=600ms";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    drop(slow.try_lock_for("a", WAIT_LIMIT).unwrap());
    proxy.set(Fault::DelayRequests(Duration::from_secs(3)));
    let error = slow.lock("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    proxy.set(Fault::Pass);
    // The late request grants nothing.
    let first = rival.lock("a").unwrap();
    assert!(first.is_held());
    let token = first.token();
    assert_eq!(first.release().unwrap(), Released::Done);
    until("the lock is free", || holder_of(&server, "a").is_none());
    let again = slow.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
    assert!(again.token() > token);
    drop((again, slow, rival));
    assert_clean(&server);
}

/// The protocol has no ids that match replies to requests, so a late reply could be read as that to a
/// later request.
fn late_replies_are_not_matched_to_later_requests(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=9s&pool_size=2";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    let taken = rival.lock("b").unwrap();
    let late = Fault::DelayReplies(Duration::from_millis(2500));
    // Waits for the late reply, which grants `a`, and checks that it is not read as a grant of `b`.
    let b_is_still_held = |what: &str, before: Counts| {
        let came = proxy.wait_for(WAIT_LIMIT, |counts| {
            counts.held > before.held && counts.reply_bytes > before.reply_bytes
        });
        assert!(came, "the late reply never came");
        for _ in 0..3 {
            let answer = slow.try_lock("b").unwrap();
            assert!(answer.is_none(), "b is held by two after {what}");
        }
        assert!(taken.is_held());
        taken.renew().unwrap();
    };
    for _ in 0..2 {
        let before = proxy.counts();
        proxy.once(Server::LOCK_REQUEST, late);
        let held = slow.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
        b_is_still_held("an acquisition", before);
        let before = proxy.counts();
        proxy.once(Server::LOCK_REQUEST, late);
        if let Err(error) = held.release() {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        }
        b_is_still_held("a release", before);
    }
    drop((taken, slow, rival));
    assert_clean(&server);
}

/// A renewal that arrives after the lease has expired does not revive the lease.
fn renewal_later_than_ttl(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=2s&response_timeout=10s&wait=20s";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    let held = slow.lock("a").unwrap();
    witness.enter(&held);
    proxy.set(Fault::DelayRequests(Duration::from_secs(4)));
    // The witness checks that the former holder knows of its loss by now.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(
        proxy.wait_for(WAIT_LIMIT, |counts| counts.held > 0),
        "no renewal was late"
    );
    proxy.set(Fault::Pass);
    let _ = held.release();
    assert!(next.is_held());
    next.renew().unwrap();
    assert_eq!(next.release().unwrap(), Released::Done);
    drop((slow, rival));
    assert_clean(&server);
    assert_closed(&proxy);
}

/// Carries two connections. After `is_dying` is set, the first one drops everything from its next reply
/// on, and the server does not learn that the client has closed it.
fn half_open(server: SocketAddr, is_dying: &Arc<AtomicBool>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let is_dying = Arc::clone(is_dying);
    thread::spawn(move || {
        for number in 0..2 {
            let (client, _) = listener.accept().unwrap();
            let server = TcpStream::connect(server).unwrap();
            let is_dead = Arc::new(AtomicBool::new(false));
            let (mut requests, mut sent) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            let no_more = Arc::clone(&is_dead);
            thread::spawn(move || {
                let mut request = [0; 4096];
                while let Ok(count @ 1..) = requests.read(&mut request) {
                    if !no_more.load(Ordering::SeqCst) {
                        sent.write_all(request.get(..count).unwrap()).unwrap();
                    }
                }
            });
            let is_dying = Arc::clone(&is_dying);
            let (mut client, mut server) = (client, server);
            thread::spawn(move || {
                let mut reply = [0; 4096];
                while let Ok(count @ 1..) = server.read(&mut reply) {
                    if number == 0 && is_dying.load(Ordering::SeqCst) {
                        is_dead.store(true, Ordering::SeqCst);
                    } else {
                        client.write_all(reply.get(..count).unwrap()).unwrap();
                    }
                }
            });
        }
    });
    addr
}

/// The server granted the name to a connection that this keeper has closed, and has not noticed that.
fn own_half_open_session_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let is_dying = Arc::new(AtomicBool::new(false));
    let url = server.url_via(half_open(server.addr(), &is_dying));
    let keys = "ttl=30s&response_timeout=500ms&connect_timeout=20s";
    let keeper = open(&url, keys);
    is_dying.store(true, Ordering::SeqCst);
    let granted = keeper.try_lock("a").unwrap();
    let granted = granted.expect("the keeper ends its own former session");
    assert_eq!(granted.release().unwrap(), Released::Done);
    drop(keeper);
    assert_clean(&server);
}

/// The server grants the name to a wait that this keeper has cancelled, ahead of its next one.
fn own_half_open_wait_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let is_dying = Arc::new(AtomicBool::new(false));
    let url = server.url_via(half_open(server.addr(), &is_dying));
    let keeper = open(&url, "ttl=30s");
    let rival = open(&server.url(), "");
    let held = rival.lock("a").unwrap();
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    thread::scope(|scope| {
        let cancelled = scope.spawn(|| keeper.acquire("a", &options).map(drop));
        until("the waiter is queued", || {
            waiting_for(&server, "a").len() == 1
        });
        is_dying.store(true, Ordering::SeqCst);
        cancel.cancel();
        let error = cancelled.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        let next = scope.spawn(|| keeper.try_lock_for("a", Duration::from_secs(2)));
        until("both sessions wait", || {
            waiting_for(&server, "a").len() == 2
        });
        assert_eq!(held.release().unwrap(), Released::Done);
        match next.join().unwrap() {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
            Ok(_) => panic!("no other keeper holds it"),
        }
    });
    // By now the keeper has ended its former session.
    drop(keeper.try_lock("a").unwrap().unwrap());
    drop((keeper, rival));
    assert_clean(&server);
}
