//! Which failures begin an outage, and which replies end it.

use super::*;

const AT: HostInstant = HostInstant::from_nanos(60_000_000_000);
const LATER: Duration = Duration::from_secs(60);

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "the test's store is gone")
}

/// Records a failure that came `took` after the request, whose caller waits until `limit` after it.
fn fail(health: &Health, kind: ErrorKind, asked: Asked, took: Duration, limit: Duration) {
    let unanswered = Unanswered {
        error: &error(kind),
        asked_at: AT,
        deadline: AT + limit,
        asked,
    };
    health.fail(&unanswered, AT + took, |since| assert!(since == AT));
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
        let health = Health::new();
        fail(&health, kind, asked, took, limit);
        let found = (health.is_in_doubt(), health.is_down());
        assert_eq!(found, expected, "{kind:?} after {took:?}");
    }
}

#[test]
fn replies_lost_in_a_row_are_an_outage_only_for_names_that_were_asked_for_since() {
    for (asked, since, is_outage) in [
        (Asked::ForName, true, true),
        (Asked::ForName, false, false),
        (Asked::ForLease, true, false),
    ] {
        let health = Health::new();
        // Its caller asked earlier, or its failure is later than the second request.
        let took = if since { millis(0) } else { millis(50) };
        fail(&health, ErrorKind::Unknown, Asked::ForName, took, LATER);
        fail(&health, ErrorKind::Unknown, asked, millis(60), LATER);
        assert!(health.is_in_doubt());
        assert_eq!(health.is_down(), is_outage);
    }
}

#[test]
fn failure_of_a_request_from_before_the_last_reply_says_nothing() {
    for (heard_at, is_outage) in [(AT + millis(20), false), (AT, true)] {
        let health = Health::new();
        health.hear(heard_at);
        health.hear(AT);
        fail(
            &health,
            ErrorKind::Unavailable,
            Asked::ForName,
            LATER,
            2 * LATER,
        );
        assert_eq!(
            (health.is_in_doubt(), health.is_down()),
            (is_outage, is_outage)
        );
    }
}

#[test]
fn outage_tells_its_beginning_and_its_last_refusal() {
    let health = Health::new();
    assert!(health.outage().is_none());
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
        health.fail(&unanswered, AT + LATER, |_| begun += 1);
        let (since, current) = health.outage().unwrap();
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
    let health = Health::new();
    fail(
        &health,
        ErrorKind::Unavailable,
        Asked::ForName,
        millis(10),
        LATER,
    );
    assert!(!health.recover(AT + millis(9), || panic!("the outage goes on")));
    assert!(health.is_in_doubt() && health.is_down());
    let mut ended = 0;
    assert!(health.recover(AT + millis(10), || ended += 1));
    assert!(!health.is_in_doubt() && !health.is_down() && health.outage().is_none());
    assert!(
        !health.recover(AT + LATER, || ended += 1),
        "leases are verified once"
    );
    assert_eq!(ended, 1);
    fail(
        &health,
        ErrorKind::Unavailable,
        Asked::ForName,
        2 * LATER,
        LATER,
    );
    assert!(!health.is_in_doubt(), "a later request was answered");
}

/// A request that was made between two failures, and after the one that failed last.
#[test]
fn reply_ends_an_outage_whatever_failed_since() {
    let health = Health::new();
    for took in [millis(10), millis(50)] {
        fail(&health, ErrorKind::Unavailable, Asked::ForName, took, LATER);
    }
    assert!(health.recover(AT + millis(20), || {}));
    assert!(!health.is_in_doubt());
}
