//! Messages that arrive late.

use std::thread;
use std::time::Duration;

use lockkeeper::ErrorKind;
use lockkeeper_testkit::{Counts, Fault, StoreKind, cases, until};

use super::{Case, Keepers as _, WAIT_LIMIT, start};

pub(super) const CASES: &[Case] = cases![
    late_replies_are_not_matched_to_later_requests,
    wait_that_ends_before_a_late_reply_is_busy,
];

/// The protocols have no ids that match replies to requests, so a late reply could be read as that to a later request.
fn late_replies_are_not_matched_to_later_requests(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let slow = server.open_via(&proxy, "ttl=9s&response_timeout=1s&pool_size=2");
    let rival = server.open("wait=20s");
    let taken = rival.lock("b").unwrap();
    let late = Fault::DelayReplies(Duration::from_millis(2500));
    // Waits for the late reply, which is about `a`, and checks that it is not read as a grant of `b`.
    let b_is_still_held = |what: &str, before: Counts| {
        let came = proxy.wait_for(WAIT_LIMIT, |counts| counts.late > before.late);
        assert!(came, "the late reply never came");
        for _ in 0..3 {
            // On a busy machine, a reply or a connection may take longer than the time-outs.
            until("the store says that b is held", || {
                match slow.try_lock("b") {
                    Ok(answer) => {
                        assert!(answer.is_none(), "b is held by two after {what}");
                        true
                    }
                    Err(error) => {
                        assert!(error.is_retryable(), "{error:?}");
                        false
                    }
                }
            });
        }
        assert!(taken.is_held());
        taken.renew().unwrap();
    };
    for _ in 0..2 {
        let before = proxy.counts();
        proxy.once(server.facts().lock_request, late);
        let held = slow.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
        b_is_still_held("an acquisition", before);
        let before = proxy.counts();
        proxy.once(server.facts().lock_request, late);
        if let Err(error) = held.release() {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
        }
        b_is_still_held("a release", before);
    }
    drop((taken, slow, rival));
    server.assert_clean();
}

/// A server that is busy replies later than an acquisition may end. The lock is busy all along.
fn wait_that_ends_before_a_late_reply_is_busy(kind: StoreKind) {
    let server = start(kind);
    let proxy = server.start_proxy();
    let slow = server.open_via(&proxy, "ttl=9s");
    let rival = server.open("wait=20s");
    drop(server.lock_after_waiting(&slow, &rival));
    let held = rival.lock("a").unwrap();
    let ends_as_busy = || {
        let (answer, met_delay) = thread::scope(|scope| {
            let waiting = scope.spawn(|| slow.try_lock_for("a", Duration::from_secs(1)));
            until("it waits", || {
                server.queue_length("a") > 0 || waiting.is_finished()
            });
            // Longer than an acquisition lasts after its deadline, and less than the time-outs.
            let held = proxy.counts().held;
            proxy.set(Fault::DelayReplies(Duration::from_millis(200)));
            (waiting.join().unwrap(), proxy.counts().held > held)
        });
        proxy.set(Fault::Pass);
        until("its last request is given back", || {
            slow.pending_releases() == 0
        });
        match answer {
            Ok(answer) => {
                assert!(answer.is_none(), "the other keeper holds it");
                met_delay
            }
            // On a busy machine, the holder may not have been seen for long.
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                false
            }
        }
    };
    for _ in 0..2 {
        // Its last request may come before the delay, or after the deadline.
        assert!((0..40).any(|_| ends_as_busy()), "a wait ends as busy");
    }
    held.release().unwrap();
    drop(slow.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap());
    drop((slow, rival));
    server.assert_clean();
}
