//! Calls on a server that is stopped in the middle: each ends by its deadline, or with its cancel.

use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{AcquireOptions, CancelToken, Error, ErrorKind, LockGuard, LockKeeper};
use lockkeeper_testkit::{PostgresKind, PostgresServer, cases, until};

use crate::store::{Case, open, start_own};

pub(crate) const CASES: &[Case] = cases![
    wait_in_a_stopped_server_ends_by_its_deadline,
    attempt_at_a_stopped_server_ends_by_its_deadline,
    cancel_ends_a_call_on_a_stopped_server,
];

/// What an end may be late by. On a busy machine it may be more once, and not with each try.
const LATE: Duration = Duration::from_millis(250);
const TRIES: usize = 6;

/// Tries until a call ends in time. `call` returns by how much it was late.
fn ends_in_time(mut call: impl FnMut() -> Duration) {
    let late: Vec<_> = (0..TRIES)
        .map(|_| call())
        .take_while(|late| *late > LATE)
        .collect();
    assert!(late.len() < TRIES, "{late:?}");
}

fn waits(server: &PostgresServer) -> bool {
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    server.value(sql).unwrap() == "1"
}

#[track_caller]
fn is_no_busy_lock(answer: &Result<Option<LockGuard>, Error>) {
    assert!(
        answer.as_ref().is_err_and(Error::is_retryable),
        "{answer:?}"
    );
}

/// Lets the server go on, and waits until the keeper has a connection again.
fn go_on(server: &PostgresServer, keeper: &LockKeeper) {
    server.cont().unwrap();
    until("the server answers", || keeper.try_lock("other").is_ok());
}

fn wait_in_a_stopped_server_ends_by_its_deadline(kind: PostgresKind) {
    // Longer than a reply may take: a server that is silent for less may be slow, and the lock was held.
    const WAIT: Duration = Duration::from_secs(2);
    let server = start_own(kind);
    let waiter = open(&server, "response_timeout=1s");
    let holder = open(&server, "ttl=600s");
    let _held = holder.lock("a").unwrap();
    ends_in_time(|| {
        let took = thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let began = Instant::now();
                let answer = waiter.try_lock_for("a", WAIT);
                (answer, began.elapsed())
            });
            until("it waits", || waits(&server));
            server.stop().unwrap();
            let (answer, took) = waiting.join().unwrap();
            is_no_busy_lock(&answer);
            took
        });
        go_on(&server, &waiter);
        took.saturating_sub(WAIT)
    });
}

fn attempt_at_a_stopped_server_ends_by_its_deadline(kind: PostgresKind) {
    const WAIT: Duration = Duration::from_millis(50);
    let server = start_own(kind);
    let keeper = open(&server, "");
    ends_in_time(|| {
        server.stop().unwrap();
        let began = Instant::now();
        is_no_busy_lock(&keeper.try_lock_for("a", WAIT));
        let took = began.elapsed();
        go_on(&server, &keeper);
        took.saturating_sub(WAIT)
    });
}

/// Where a cancel meets a call.
#[derive(Clone, Copy, PartialEq)]
enum Cancelled {
    InAWait,
    InAnAttempt,
    WhileItConnects,
}

fn cancel_ends_a_call_on_a_stopped_server(kind: PostgresKind) {
    let server = start_own(kind);
    let (holder, waiter) = (open(&server, "ttl=600s"), open(&server, ""));
    for at in [
        Cancelled::InAWait,
        Cancelled::InAnAttempt,
        Cancelled::WhileItConnects,
    ] {
        ends_in_time(|| {
            let held = holder.lock("a").unwrap();
            let cancel = CancelToken::new();
            let options = AcquireOptions::new().wait_forever().cancel(&cancel);
            if at == Cancelled::WhileItConnects {
                server.end_sessions().unwrap();
            }
            let took = thread::scope(|scope| {
                if at != Cancelled::InAWait {
                    server.stop().unwrap();
                }
                let waiting = scope.spawn(|| waiter.acquire("a", &options));
                if at == Cancelled::InAWait {
                    until("it waits", || waits(&server));
                    server.stop().unwrap();
                } else {
                    // On a busy machine, the call may not have begun. Then it ends at once.
                    thread::sleep(Duration::from_millis(100));
                }
                let began = Instant::now();
                cancel.cancel();
                let error = waiting.join().unwrap().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Cancelled);
                began.elapsed()
            });
            server.cont().unwrap();
            drop(held);
            until("the server answers", || {
                [&holder, &waiter]
                    .iter()
                    .all(|it| it.try_lock("other").is_ok())
            });
            took
        });
    }
}
