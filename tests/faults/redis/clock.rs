//! A server whose wall clock is set while it runs.

use std::time::Duration;

use libtest_mimic::Trial;
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{AcquireOptions, LeasePolicy, LockKeeper};
use lockkeeper_testkit::suite::trial_unless;
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, cases, until};

use super::Case;
use super::store::{listening, open};
use crate::common::WAIT_LIMIT;

const CASES: &[Case] = cases![
    clock_set_forward_verifies_all_leases,
    clock_set_back_is_found,
];

pub(super) fn trials() -> Vec<Trial> {
    let trials = CASES.iter().flat_map(|case| {
        RedisKind::ALL.map(|kind| trial_unless(kind, RedisKind::clock_ignored, *case))
    });
    trials.collect()
}

fn start(kind: RedisKind) -> RedisServer {
    RedisServer::start(kind, &RedisOptions::new().settable_clock()).unwrap()
}

fn clock_findings(keeper: &LockKeeper) -> String {
    let admin = keeper.admin().unwrap();
    let findings = admin.examine(SystemClock.now() + WAIT_LIMIT).unwrap();
    let of_clock = findings.iter().filter(|it| it.topic == "clock runs");
    of_clock.map(|it| it.what.as_str()).collect()
}

/// One renewal succeeds, and tells that leases which are not renewed have ended.
fn clock_set_forward_verifies_all_leases(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let lock = |name, secs| {
        let ttl = Duration::from_secs(secs);
        let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
        keeper.acquire(name, &fixed).unwrap().unwrap()
    };
    let [long, short] = [lock("long", 36_000), lock("short", 3_600)];
    long.renew().unwrap();
    assert!(clock_findings(&keeper).contains("runs as this host's"));
    // No other reason to verify leases is left.
    until("it listens", || listening(&server) == 1);
    let key = "lockkeeper:{default:short}";
    server.command(&["PEXPIRE", key, "3000000"]).unwrap();
    let ended = ["PUBLISH", "lockkeeper:ended:default", "x"];
    server.command(&ended).unwrap();
    until("all leases are verified", || {
        server.command(&["PTTL", key]).unwrap().int() > Some(3_000_000)
    });
    // A busy machine may measure some seconds more or less.
    server.set_clock(7_250_000).unwrap();
    long.renew().unwrap();
    until("the lease that has ended is lost", || {
        short.ensure_held().is_err()
    });
    long.ensure_held().unwrap();
    let found = clock_findings(&keeper);
    assert!(found.contains("was set forward by 72"), "{found}");
}

fn clock_set_back_is_found(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), "");
    let token = keeper.lock("a").unwrap().token();
    server.set_clock(-205_000).unwrap();
    // It has not seen the step itself.
    let other = open(&server.url(), "");
    let found = clock_findings(&other);
    assert!(found.contains("behind its last token"), "{found}");
    let guard = keeper.lock("b").unwrap();
    assert!(guard.token() > token);
    guard.renew().unwrap();
    drop(guard);
    server.command(&["FLUSHALL"]).unwrap();
    let found = clock_findings(&keeper);
    assert!(found.contains("was set back by 20"), "{found}");
}
