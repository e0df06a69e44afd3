//! Losses that a holder is notified of, or notices by itself, long before its next renewal.

use lockkeeper::admin::{Finding, Severity};
use lockkeeper::clock::{Clock, HostInstant, SystemClock};
use lockkeeper::{ErrorKind, LockGuard, LockKeeper, Released, WaitOutcome};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer, cases, until};

use super::Case;
use super::store::{listening, open, start};
use crate::common::{Keepers as _, WAIT_LIMIT, Witness};

pub(super) const CASES: &[Case] = cases![
    loss_by_restart_is_noticed,
    loss_by_flush_of_one_database_is_noticed,
    unlock_is_noticed_without_resp3,
    flush_without_permission_is_noticed_by_renewal,
    restart_grace_outlasts_former_holder,
];

/// With this ttl a renewal is due after all limits of the suite.
const LONG_TTL: &str = "ttl=10m";

fn soon() -> HostInstant {
    SystemClock.now() + WAIT_LIMIT
}

/// Locks `a` and `b`, and waits until the keeper listens.
fn lock_and_listen(server: &RedisServer, keeper: &LockKeeper) -> [LockGuard; 2] {
    let guards = ["a", "b"].map(|name| keeper.lock(name).unwrap());
    until("the holder listens", || listening(server) == 1);
    assert!(guards.iter().all(LockGuard::is_held));
    guards
}

#[track_caller]
fn all_are_lost(guards: [LockGuard; 2]) {
    for guard in guards {
        assert_eq!(guard.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
        assert_eq!(guard.release().unwrap(), Released::AlreadyLost);
    }
}

fn loss_by_restart_is_noticed(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), LONG_TTL);
    // The second time, the keeper has to have connected again.
    for _ in 0..2 {
        let guards = lock_and_listen(&server, &keeper);
        server.restart().unwrap();
        all_are_lost(guards);
    }
    drop(keeper);
    server.assert_clean();
}

fn loss_by_flush_of_one_database_is_noticed(kind: RedisKind) {
    let server = start(kind);
    let keeper = open(&server.url(), LONG_TTL);
    let guards = lock_and_listen(&server, &keeper);
    server.command(&["FLUSHDB", "ASYNC"]).unwrap();
    all_are_lost(guards);
    drop(keeper);
    server.assert_clean();
}

/// The messages have another form then, also those for waiters.
fn unlock_is_noticed_without_resp3(kind: RedisKind) {
    let options = RedisOptions::new().config("rename-command", ["HELLO", ""]);
    let server = &RedisServer::start(kind, &options).unwrap();
    let [holder, rival] = [(); 2].map(|()| open(&server.url(), LONG_TTL));
    let [taken, kept] = lock_and_listen(server, &holder);
    let admin = rival.admin().unwrap();
    let seen = admin.held(Some(taken.name()), soon()).unwrap();
    let seen = seen.first().unwrap();
    assert!(admin.force_release(seen, soon()).unwrap());
    assert_eq!(taken.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(kept.is_held());
    // A waiter of the other process is woken.
    assert_eq!(kept.release().unwrap(), Released::Done);
    let next = server.lock_after_waiting(&rival, &holder);
    assert!(next.token() > taken.token());
    drop((next, taken, holder, rival));
    server.assert_clean();
}

fn finding(keeper: &LockKeeper, topic: &str) -> Finding {
    let findings = keeper.admin().unwrap().examine(soon()).unwrap();
    let mut findings = findings.into_iter();
    findings.find(|finding| finding.topic == topic).unwrap()
}

fn flush_without_permission_is_noticed_by_renewal(kind: RedisKind) {
    let server = start(kind);
    let permit = |rule| {
        server
            .command(&["ACL", "SETUSER", "default", rule])
            .unwrap()
    };
    permit("-client|tracking");
    let keeper = open(&server.url(), "ttl=3s");
    let guards = lock_and_listen(&server, &keeper);
    server.command(&["FLUSHALL"]).unwrap();
    all_are_lost(guards);
    assert_eq!(finding(&keeper, "flush").severity, Severity::Warning);
    permit("+client|tracking");
    assert_eq!(finding(&keeper, "flush").severity, Severity::Fine);
    drop(keeper);
    server.assert_clean();
}

/// The former holder is cut off when the server forgets its lock.
fn restart_grace_outlasts_former_holder(kind: RedisKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let cut_off = open(&server.url_via(proxy.addr()), "ttl=3s");
    // Longer than the two attempts below take on a busy machine.
    let rival = open(&server.url(), "restart_grace=8s");
    let witness = Witness::new(true);
    let held = cut_off.lock("a").unwrap();
    witness.enter(&held);
    proxy.set(Fault::Dark);
    server.restart().unwrap();
    // A single attempt is refused, on a connection of the pool and on a new one.
    for _ in 0..2 {
        let error = rival.try_lock("a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("restart_grace"), "{error}");
    }
    let next = rival.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
    witness.enter(&next);
    assert!(next.token() > held.token());
    proxy.set(Fault::Pass);
    let found = [&cut_off, &rival].map(|keeper| finding(keeper, "persistence"));
    let severities = found.map(|finding| finding.severity);
    assert_eq!(severities, [Severity::Warning, Severity::Fine]);
    drop((held, next, cut_off, rival));
    server.assert_clean();
    // A server that forgets nothing that matters is not asked for its age.
    let rules = ["ACL", "SETUSER", "default", "-info"];
    server.command(&rules).unwrap();
    drop(open(&server.url(), ""));
    let refused = lockkeeper::open(&format!("{}/?restart_grace=3s", server.url()));
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("+info"), "{error}");
}
