//! Which failures begin an outage, and which replies end it.

use std::thread;

use super::*;
use crate::clock::{Clock, ManualClock};

const AT: HostInstant = HostInstant::from_nanos(60_000_000_000);
const LATER: Duration = Duration::from_secs(60);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "the test's store is gone")
}

/// Records a failure that came `took` after the request, whose caller waits until `limit` after it.
fn fail(gate: &OutageGate, kind: ErrorKind, asked: Asked, took: Duration, limit: Duration) {
    let unanswered = Unanswered {
        error: &error(kind),
        asked_at: AT,
        deadline: AT + limit,
        asked,
    };
    gate.fail(&unanswered, AT + took, |since| assert!(since == AT));
}

#[test]
fn failure_begins_an_outage_or_doubts_or_says_nothing() {
    use Asked::{BesideAnswers, ForLease, ForName};
    use ErrorKind::{Unavailable, Unknown};

    let (nothing, doubt, outage) = ((false, false), (true, false), (true, true));
    let pending = millis(0);
    let cases = [
        (Unavailable, ForName, millis(0), LATER, outage),
        (Unavailable, ForLease, millis(0), LATER, outage),
        (Unavailable, BesideAnswers, millis(0), LATER, doubt),
        // A connection that was closed, or a time-out.
        (Unknown, ForName, millis(99), LATER, doubt),
        (Unknown, ForName, millis(100), LATER, outage),
        (Unknown, ForLease, millis(99), LATER, doubt),
        (Unknown, ForLease, millis(100), LATER, outage),
        (Unknown, BesideAnswers, millis(100), LATER, doubt),
        // The caller stopped to wait.
        (Unknown, ForName, millis(499), pending, nothing),
        (Unavailable, ForLease, millis(499), pending, nothing),
        (Unknown, ForName, millis(500), pending, outage),
        (Unknown, ForName, millis(499), millis(500), outage),
    ];
    for (kind, asked, took, limit, expected) in cases {
        let gate = OutageGate::new();
        fail(&gate, kind, asked, took, limit);
        let found = (gate.is_in_doubt(), gate.is_down());
        assert_eq!(found, expected, "{kind:?} after {took:?}");
        assert_eq!(gate.is_silent(), gate.is_in_doubt());
    }
}

#[test]
fn replies_lost_in_a_row_are_an_outage_only_for_names_that_were_asked_for_since() {
    for (asked, since, is_outage) in [
        (Asked::ForName, true, true),
        (Asked::ForName, false, false),
        (Asked::ForLease, true, false),
    ] {
        let gate = OutageGate::new();
        // Its caller asked earlier, or its failure is later than the second request.
        let took = if since { millis(0) } else { millis(50) };
        fail(&gate, ErrorKind::Unknown, Asked::ForName, took, LATER);
        fail(&gate, ErrorKind::Unknown, asked, millis(60), LATER);
        assert!(gate.is_in_doubt());
        assert_eq!(gate.is_down(), is_outage);
    }
}

#[test]
fn failure_of_a_request_from_before_the_last_reply_says_nothing() {
    for (heard_at, is_outage) in [(AT + millis(20), false), (AT, true)] {
        let gate = OutageGate::new();
        gate.hear(heard_at);
        gate.hear(AT);
        fail(
            &gate,
            ErrorKind::Unavailable,
            Asked::ForName,
            LATER,
            2 * LATER,
        );
        assert_eq!((gate.is_in_doubt(), gate.is_down()), (is_outage, is_outage));
    }
}

#[test]
fn outage_tells_its_beginning_and_its_last_refusal() {
    let gate = OutageGate::new();
    assert!(gate.current().is_none());
    let mut begun = 0;
    for (kind, text, cause) in [
        (ErrorKind::Unknown, "first", "first"),
        (ErrorKind::Unavailable, "second", "second"),
        (ErrorKind::Unknown, "third", "second"),
    ] {
        let unanswered = Unanswered {
            error: &Error::new(kind, text),
            asked_at: AT,
            deadline: AT + 2 * LATER,
            asked: Asked::ForName,
        };
        gate.fail(&unanswered, AT + LATER, |_| begun += 1);
        let (since, current) = gate.current().unwrap();
        assert!(since == AT);
        assert_eq!(
            (current.kind(), current.message()),
            (ErrorKind::Unavailable, cause)
        );
    }
    assert_eq!(begun, 1);
}

#[test]
fn reply_to_a_later_request_ends_doubt_and_outage() {
    let gate = OutageGate::new();
    fail(
        &gate,
        ErrorKind::Unavailable,
        Asked::ForName,
        millis(10),
        LATER,
    );
    assert!(!gate.recover(AT + millis(9), || panic!("the outage goes on")));
    assert!(gate.is_in_doubt() && gate.is_down());
    let mut ended = 0;
    assert!(gate.recover(AT + millis(10), || ended += 1));
    assert!(!gate.is_in_doubt() && !gate.is_down() && gate.current().is_none());
    assert!(
        !gate.recover(AT + LATER, || ended += 1),
        "leases are verified once"
    );
    assert_eq!(ended, 1);
    fail(
        &gate,
        ErrorKind::Unavailable,
        Asked::ForName,
        2 * LATER,
        LATER,
    );
    assert!(!gate.is_in_doubt(), "a later request was answered");
}

/// A request that was made between two failures: its reply ends the outage, and not the doubt.
#[test]
fn outage_and_doubt_end_by_themselves() {
    let gate = OutageGate::new();
    for took in [millis(10), millis(50)] {
        fail(&gate, ErrorKind::Unavailable, Asked::ForName, took, LATER);
    }
    assert!(gate.recover(AT + millis(20), || {}));
    assert!(gate.is_in_doubt() && !gate.is_down());
    assert!(gate.recover(AT + millis(50), || panic!("it has ended")));
    assert!(!gate.is_in_doubt());
}

#[test]
fn slow_store_is_silent_until_a_release_is_quick() {
    let gate = OutageGate::new();
    assert!(!gate.is_silent());
    for is_slow in [true, false] {
        gate.set_slow(is_slow);
        assert_eq!(gate.is_silent(), is_slow);
        assert!(!gate.is_in_doubt());
    }
}

#[test]
fn parked_acquisition_that_ends_leaves_the_prober_to_ask() {
    let (gate, clock) = (OutageGate::new(), ManualClock::new());
    fail(
        &gate,
        ErrorKind::Unavailable,
        Asked::ForName,
        millis(0),
        LATER,
    );
    let mut prober = Rider::new(&gate);
    assert!(prober.failed());
    thread::scope(|scope| {
        let parked = scope.spawn(|| {
            let limits = Limits {
                clock: &clock,
                until: clock.now() + LATER,
                cancel: None,
            };
            Rider::new(&gate).wait(&limits, 0)
        });
        while lock(&gate.state).parked.is_empty() {
            thread::yield_now();
        }
        clock.advance(2 * LATER);
        gate.unpark_all();
        assert!(parked.join().unwrap().is_err());
    });
    let state = lock(&gate.state);
    assert_eq!(state.outage.as_ref().unwrap().prober, prober.ticket);
}
