//! Late messages.

use std::time::Duration;

use lockkeeper::{ErrorKind, Released, WaitOutcome};
use lockkeeper_testkit::{Counts, Fault, PostgresKind, Proxy, until};

use super::Case;
use super::store::{Server, assert_clean, holders, open, start};
use crate::faults::{FaultServer, WAIT_LIMIT, Witness, assert_closed};

pub(super) const CASES: &[Case] = &[
    ("request_later_than_wait", request_later_than_wait),
    (
        "late_replies_are_not_matched_to_later_requests",
        late_replies_are_not_matched_to_later_requests,
    ),
    ("renewal_later_than_ttl", renewal_later_than_ttl),
];

fn request_later_than_wait(kind: PostgresKind) {
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
    until("the lock is free", || holders(&server).is_empty());
    let again = slow.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
    assert!(again.token() > token);
    drop((again, slow, rival));
    assert_clean(&server);
}

/// The protocol has no ids that match replies to requests, so a late reply could be read as that to a
/// later request.
fn late_replies_are_not_matched_to_later_requests(kind: PostgresKind) {
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
fn renewal_later_than_ttl(kind: PostgresKind) {
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
