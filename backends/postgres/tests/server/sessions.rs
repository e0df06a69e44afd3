//! What becomes of a session, and what the holder and the waiters notice of it.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CancelToken, ErrorKind, LeasePolicy, WaitOutcome};
use lockkeeper_testkit::{PostgresKind, cases, until};

use crate::store::{Case, WAIT_LIMIT, holder, open, start, with_timeouts};

pub(crate) const CASES: &[Case] = cases![
    killed_session_is_lost_at_once,
    silent_holder_is_ended_by_the_server,
    cancelled_wait_leaves_the_servers_queue,
    wait_takes_one_statement_beside_its_attempt,
    stopped_server_is_unanswered,
    databases_have_locks_of_their_own,
];

const WAITING: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

fn killed_session_is_lost_at_once(kind: PostgresKind) {
    let server = start(kind);
    let (keeper, next) = (open(&server, "ttl=10m"), open(&server, ""));
    let held = keeper.lock("a").unwrap();
    let session = holder(&server);
    server
        .execute(&format!("SELECT pg_terminate_backend({session})"))
        .unwrap();
    // Without the watched socket, it would be noticed at the renewal after 200 s.
    assert_eq!(held.lost_signal().wait(WAIT_LIMIT), WaitOutcome::Lost);
    assert!(next.lock("a").unwrap().token() > held.token());
}

fn silent_holder_is_ended_by_the_server(kind: PostgresKind) {
    let server = start(kind);
    let (keeper, next) = (open(&server, ""), open(&server, ""));
    let ttl = Duration::from_millis(300);
    let fixed = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    let held = keeper.acquire("a", &fixed).unwrap().unwrap();
    let other = next.try_lock_for("a", WAIT_LIMIT).unwrap().unwrap();
    assert!(!held.is_held() && other.token() > held.token());
}

fn cancelled_wait_leaves_the_servers_queue(kind: PostgresKind) {
    let server = start(kind);
    let (keeper, waiter) = (open(&server, ""), open(&server, ""));
    let _held = keeper.lock("a").unwrap();
    let token = CancelToken::new();
    thread::scope(|scope| {
        let wait = scope.spawn(|| {
            // Longer than the test waits for the end of the wait in the server.
            let options = AcquireOptions::new().wait(10 * WAIT_LIMIT).cancel(&token);
            waiter.acquire("a", &options).map(drop)
        });
        until("it waits in the server", || {
            server.value(WAITING).unwrap() == "1"
        });
        token.cancel();
        let error = wait.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    until("the server's queue is empty", || {
        server.value(WAITING).unwrap() == "0"
    });
}

fn wait_takes_one_statement_beside_its_attempt(kind: PostgresKind) {
    let server = start(kind);
    let (keeper, waiter) = (open(&server, ""), open(&server, ""));
    waiter.lock("a").unwrap().release().unwrap();
    let held = keeper.lock("a").unwrap();
    let commands = || waiter.usage().unwrap().commands;
    let before = commands();
    let next = thread::scope(|scope| {
        let wait = scope.spawn(|| waiter.try_lock_for("a", WAIT_LIMIT).unwrap());
        until("it waits in the server", || {
            server.value(WAITING).unwrap() == "1"
        });
        held.release().unwrap();
        wait.join().unwrap().expect("it is free")
    });
    assert_eq!(commands(), before + 2);
    next.release().unwrap();
}

fn stopped_server_is_unanswered(kind: PostgresKind) {
    let server = start(kind);
    let keeper = open(&server, "response_timeout=1s&connect_timeout=5s");
    let held = keeper.lock("a").unwrap();
    server.stop().unwrap();
    let error = held.renew().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
    let error = keeper.try_lock("b").unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Unknown | ErrorKind::Unavailable),
        "{error:?}"
    );
    server.cont().unwrap();
    drop(keeper.lock("b").unwrap());
}

fn databases_have_locks_of_their_own(kind: PostgresKind) {
    let server = start(kind);
    let shop = open(&server, "");
    let url = server.url().replace("/shop", "/template1");
    let other = crate::store::try_open(&with_timeouts(&url)).unwrap();
    let held = (shop.lock("a").unwrap(), other.lock("a").unwrap());
    assert!(held.0.is_held() && held.1.is_held());
}
