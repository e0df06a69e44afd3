//! A network that loses, delays and cuts what it carries.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, LockGuard, Released, WaitOutcome};
use lockkeeper_testkit::{Counts, Fault, MySqlKind, Proxy};

use super::store::{holder_of, open, settled, start, waiting_for};
use crate::rig::{HANG, PATIENCE, Waiting, Witness, until};

/// What is in every request that is about the lock `a`.
const ABOUT: &str = "default:a";

/// A keeper by way of a proxy, and another one that sees the server as it is. A session whose answer
/// is missing cannot be asked again, so its lock may be lost; that is told, and nobody else is held
/// up for longer than the ttl.
pub(super) fn lost_on_the_way(kind: MySqlKind, fault: Fault) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = server.url_via(proxy.addr());
    let keeper = open(&url, "ttl=5s&wait=20s");
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    let counted = || {
        let counts = proxy.counts();
        counts.dropped_requests + counts.dropped_replies + counts.cut
    };
    for _ in 0..2 {
        // The grant: asked for until it is there.
        let before = counted();
        proxy.once(ABOUT, fault);
        let guard = keeper.lock("a").unwrap();
        assert!(counted() > before, "the fault was not met");
        assert!(guard.is_held());
        witness.enter(&guard);
        assert!(rival.try_lock("a").unwrap().is_none());
        // The renewal.
        let before = counted();
        proxy.once(ABOUT, fault);
        let renewed = guard.renew();
        assert!(counted() > before, "the fault was not met");
        match renewed {
            Ok(()) => assert!(guard.is_held()),
            Err(error) if error.kind() == ErrorKind::Lost => assert!(!guard.is_held()),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        // The server may not have noticed yet that nobody is there any more.
        if let Err(error) = guard.release() {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        }
        let next = rival.lock("a").unwrap();
        witness.enter(&next);
        assert_eq!(next.release().unwrap(), Released::Done);
        // The release.
        let guard = keeper.lock("a").unwrap();
        witness.enter(&guard);
        let before = counted();
        proxy.once(ABOUT, fault);
        if let Err(error) = guard.release() {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        }
        assert!(counted() > before, "the fault was not met");
        let next = rival.lock("a").unwrap();
        witness.enter(&next);
        assert_eq!(next.release().unwrap(), Released::Done);
        proxy.set(Fault::Pass);
    }
    drop((keeper, rival));
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

/// The request to wait, and the answer to it.
pub(super) fn waits_lost_on_the_way(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = format!("{}?ttl=3s", server.url_via(proxy.addr()));
    let rival = open(&server.url(), "ttl=20s&wait=20s");
    let witness = Witness::new(true);
    for fault in [
        Fault::DropRequests,
        Fault::DropReplies,
        Fault::CutReplyAfter(0),
        Fault::CutReplyAfter(7),
    ] {
        let held = rival.lock("a").unwrap();
        witness.enter(&held);
        let waiting = Waiting::start(&url, Duration::from_secs(20), &witness);
        until("it waits", || waiting_for(&server, "a").len() == 1);
        // The next things that it hears or says, and what follows from that.
        proxy.set(fault);
        let token = held.token().get();
        let before = proxy.counts();
        assert_eq!(held.release().unwrap(), Released::Done);
        let met = proxy.wait_for(PATIENCE, |counts| {
            counts.dropped_requests + counts.dropped_replies + counts.cut
                > before.dropped_requests + before.dropped_replies + before.cut
        });
        assert!(met, "{fault:?} is not met");
        proxy.set(Fault::Pass);
        assert!(waiting.answer().expect("it is granted in the end") > token);
    }
    drop(rival);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

pub(super) fn reply_later_than_the_ttl(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=1s&response_timeout=10s&wait=8s";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    drop(slow.lock("a").unwrap());
    let witness = Witness::new(true);
    proxy.once(ABOUT, Fault::DelayReplies(Duration::from_secs(4)));
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let answer = slow.lock("a");
            if let Ok(guard) = &answer {
                witness.enter(guard);
            }
            answer.map(LockGuard::release)
        });
        assert!(proxy.wait_for(PATIENCE, |counts| counts.held == 1));
        // It was granted there, and nobody renewed it.
        let taken = rival.lock("a").unwrap();
        witness.enter(&taken);
        // Whatever came of it: an error, a guard that knows that it is lost, or a later grant. The
        // witness has looked.
        until("it has an answer", || late.is_finished());
        assert!(taken.is_held());
        assert_eq!(taken.release().unwrap(), Released::Done);
        let _ = late.join().unwrap();
    });
    drop((slow, rival));
    settled(&server);
}

pub(super) fn request_later_than_the_wait(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=1s&wait=600ms";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    drop(slow.try_lock_for("a", PATIENCE).unwrap());
    proxy.set(Fault::DelayRequests(Duration::from_secs(3)));
    let error = slow.lock("a").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    proxy.set(Fault::Pass);
    // What arrives late is granted to nobody.
    let first = rival.lock("a").unwrap();
    assert!(first.is_held());
    let token = first.token();
    assert_eq!(first.release().unwrap(), Released::Done);
    until("nobody holds it", || holder_of(&server, "a").is_none());
    let again = slow.try_lock_for("a", PATIENCE).unwrap().unwrap();
    assert!(again.token() > token);
    drop((again, slow, rival));
    settled(&server);
}

/// An answer that comes after its time is not taken for that to a later question: the protocol has no
/// mark that tells them apart.
pub(super) fn late_answers_are_nobody_elses(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=9s&pool_size=2";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    let taken = rival.lock("b").unwrap();
    let late = Fault::DelayReplies(Duration::from_millis(2500));
    // Its answer has come after all, and "yes" to that is not "yes" to this.
    let others_still = |what: &str, before: Counts| {
        let came = proxy.wait_for(PATIENCE, |counts| {
            counts.held > before.held && counts.reply_bytes > before.reply_bytes
        });
        assert!(came, "the answer never came");
        for _ in 0..3 {
            let answer = slow.try_lock("b").unwrap();
            assert!(answer.is_none(), "b is held by two after {what}");
        }
        assert!(taken.is_held());
        taken.renew().unwrap();
    };
    for _ in 0..2 {
        let before = proxy.counts();
        proxy.once(ABOUT, late);
        let held = slow.try_lock_for("a", PATIENCE).unwrap().unwrap();
        others_still("an acquisition", before);
        let before = proxy.counts();
        proxy.once(ABOUT, late);
        if let Err(error) = held.release() {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        }
        others_still("a release", before);
    }
    drop((taken, slow, rival));
    settled(&server);
}

/// A renewal that arrives when all is over revives nothing.
pub(super) fn renewal_later_than_the_ttl(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=2s&response_timeout=10s&wait=20s";
    let slow = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    let held = slow.lock("a").unwrap();
    witness.enter(&held);
    proxy.set(Fault::DelayRequests(Duration::from_secs(4)));
    // Not before the other one knows: the witness looks.
    let next = rival.lock("a").unwrap();
    witness.enter(&next);
    assert_eq!(held.lost_signal().wait(PATIENCE), WaitOutcome::Lost);
    assert!(
        proxy.wait_for(PATIENCE, |counts| counts.held > 0),
        "none came late"
    );
    proxy.set(Fault::Pass);
    let _ = held.release();
    assert!(next.is_held());
    next.renew().unwrap();
    assert_eq!(next.release().unwrap(), Released::Done);
    drop((slow, rival));
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

pub(super) fn dark_while_held(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let keys = "ttl=2s&wait=1s";
    let keeper = open(&server.url_via(proxy.addr()), keys);
    let rival = open(&server.url(), "wait=20s");
    let witness = Witness::new(true);
    let held = keeper.try_lock_for("a", PATIENCE).unwrap().unwrap();
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
    let still = keeper.try_lock_for("a", HANG).unwrap();
    assert!(still.is_none(), "it is held");
    assert!(next.is_held());
    assert_eq!(next.release().unwrap(), Released::Done);
    let again = keeper.try_lock_for("a", PATIENCE).unwrap().unwrap();
    witness.enter(&again);
    drop((again, keeper, rival));
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

pub(super) fn dark_while_waited_for(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let url = server.url_via(proxy.addr());
    let url = format!("{url}?ttl=2s");
    let witness = Witness::new(true);
    let holder = open(&server.url(), "ttl=20s");
    let held = holder.lock("a").unwrap();
    witness.enter(&held);
    let [short, long] = [3, 25].map(|wait| {
        let before = waiting_for(&server, "a").len();
        let waiting = Waiting::start(&url, Duration::from_secs(wait), &witness);
        until("it waits", || waiting_for(&server, "a").len() == before + 1);
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
    // Those that are in the dark hold others up for no longer than their ttls.
    let first = held.token().get();
    assert_eq!(held.release().unwrap(), Released::Done);
    let next = holder.try_lock_for("a", PATIENCE).unwrap();
    let next = next.expect("the server ends the sessions that say nothing");
    witness.enter(&next);
    assert_eq!(next.release().unwrap(), Released::Done);
    proxy.set(Fault::Pass);
    assert!(long.answer().expect("it rides that out") > first);
    drop(holder);
    settled(&server);
    assert!(proxy.wait_for(PATIENCE, |counts| counts.open == 0));
}

/// Carries two connections. The first one dies with its next reply once `is_dying` is set: nothing
/// passes any more, and the server is not told that it is closed.
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

/// The server granted the name to a connection that this keeper has closed, and does not know that.
pub(super) fn own_half_open_session_is_not_busy(kind: MySqlKind) {
    let server = start(kind);
    let is_dying = Arc::new(AtomicBool::new(false));
    let url = server.url_via(half_open(server.addr(), &is_dying));
    let keys = "ttl=30s&response_timeout=500ms&connect_timeout=20s";
    let keeper = open(&url, keys);
    is_dying.store(true, Ordering::SeqCst);
    let granted = keeper.try_lock("a").unwrap();
    let granted = granted.expect("the keeper ends its own session");
    assert_eq!(granted.release().unwrap(), Released::Done);
    drop(keeper);
    settled(&server);
}

/// The server grants the name to a wait that this keeper has cancelled, ahead of its next one.
pub(super) fn own_half_open_wait_is_not_busy(kind: MySqlKind) {
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
        until("it waits", || waiting_for(&server, "a").len() == 1);
        is_dying.store(true, Ordering::SeqCst);
        cancel.cancel();
        let error = cancelled.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error:?}");
        let next = scope.spawn(|| keeper.try_lock_for("a", Duration::from_secs(2)));
        until("both wait", || waiting_for(&server, "a").len() == 2);
        assert_eq!(held.release().unwrap(), Released::Done);
        match next.join().unwrap() {
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}"),
            Ok(_) => panic!("nobody else holds it"),
        }
    });
    // That has ended the session.
    drop(keeper.try_lock("a").unwrap().unwrap());
    drop((keeper, rival));
    settled(&server);
}
