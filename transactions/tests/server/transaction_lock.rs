//! Locks that live as long as a transaction of PostgreSQL.

use std::thread;
use std::time::Duration;

use lockkeeper::transactions::{LockInTransaction as _, TransactionLockError};
use lockkeeper::{AcquireOptions, CancelToken, ErrorKind, FencingToken, LockKeeper};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{PostgresKind, PostgresOptions, PostgresServer, cases, until};
use postgres::{Client, Error, NoTls, Transaction};

use crate::postgres::start;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(50);
/// What comes before the largest epoch so far.
const LIMIT: &str = " OPERATOR(pg_catalog.<=) ";
const WAITING: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";

pub(crate) const CASES: &[Case<PostgresKind>] = cases![
    transaction_lock_and_guard_exclude_each_other,
    busy_lock_leaves_the_transaction_as_it_was,
    transaction_waits_for_a_guard,
    lock_of_another_database_is_refused,
    transaction_is_busy_after_a_cancelled_wait,
    nothing_is_granted_while_the_clock_is_behind,
    keeper_learns_the_epochs_of_transactions,
];

fn open(url: &str) -> LockKeeper {
    let keys = "namespace=shop&response_timeout=5s&connect_timeout=5s";
    lockkeeper::open(&format!("{url}?{keys}")).unwrap()
}

fn connect(server: &PostgresServer) -> Client {
    Client::connect(&server.url(), NoTls).unwrap()
}

fn take(
    keeper: &LockKeeper,
    transaction: &mut Transaction<'_>,
    wait: Duration,
) -> Result<FencingToken, TransactionLockError<Error>> {
    keeper.lock_in_transaction(transaction, "seat:42", wait)
}

#[track_caller]
fn assert_refused(taken: Result<FencingToken, TransactionLockError<Error>>, kind: ErrorKind) {
    let Err(TransactionLockError::Lock(error)) = taken else {
        panic!("{taken:?}");
    };
    assert_eq!(
        (error.kind(), error.name()),
        (kind, Some("seat:42")),
        "{error}"
    );
}

fn transaction_lock_and_guard_exclude_each_other(kind: PostgresKind) {
    let server = start(kind);
    let keeper = open(&server.url());
    let first = keeper.lock("seat:42").unwrap();
    let before = first.token();
    first.release().unwrap();

    let mut connection = connect(&server);
    let mut transaction = connection.transaction().unwrap();
    let token = take(&keeper, &mut transaction, Duration::ZERO).unwrap();
    assert!(token > before);
    assert!(keeper.try_lock("seat:42").unwrap().is_none());
    assert!(keeper.try_lock_shared("seat:42").unwrap().is_none());
    assert!(keeper.try_lock("seat:43").unwrap().is_some());
    transaction.commit().unwrap();
    let after = keeper
        .try_lock("seat:42")
        .unwrap()
        .expect("the lock ended with the transaction");
    assert!(after.token() > token);

    let mut transaction = connection.transaction().unwrap();
    assert_refused(
        take(&keeper, &mut transaction, Duration::ZERO),
        ErrorKind::TimedOut,
    );
}

/// A transaction's session is none of a keeper's.
fn transaction_is_busy_after_a_cancelled_wait(kind: PostgresKind) {
    let server = start(kind);
    let (keeper, other) = (open(&server.url()), open(&server.url()));
    let _held = other.lock("seat:43").unwrap();
    let cancel = CancelToken::new();
    let options = AcquireOptions::new().wait_forever().cancel(&cancel);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| keeper.acquire("seat:43", &options));
        until("it waits", || server.value(WAITING).unwrap() == "1");
        cancel.cancel();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    });
    let mut connection = connect(&server);
    let mut transaction = connection.transaction().unwrap();
    take(&keeper, &mut transaction, LONG).unwrap();
    assert!(keeper.try_lock("seat:42").unwrap().is_none());
}

fn nothing_is_granted_while_the_clock_is_behind(kind: PostgresKind) {
    let server = start(kind);
    let keeper = open(&server.url());
    let lock = keeper.transaction_lock("seat:42", SHORT).unwrap();
    // As after a grant of the far future.
    let behind = |sql: &str| {
        let (before, after) = sql.split_once(LIMIT).unwrap();
        let (_last, after) = after.split_once(" THEN").unwrap();
        format!("{before}{LIMIT}{} THEN{after}", i64::MAX)
    };
    let mut connection = connect(&server);
    let mut transaction = connection.transaction().unwrap();
    let row = transaction.query_one(&behind(lock.attempt()), &[]).unwrap();
    let error = lock.check(row.get(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    drop(keeper.try_lock("seat:42").unwrap().unwrap());
    // The clock was set back during the wait.
    transaction.batch_execute(&behind(lock.wait())).unwrap();
    drop(keeper.try_lock("seat:42").unwrap().unwrap());
}

fn keeper_learns_the_epochs_of_transactions(kind: PostgresKind) {
    let server = start(kind);
    let keeper = open(&server.url());
    let lock = || keeper.transaction_lock("seat:42", SHORT).unwrap();
    let mut connection = connect(&server);
    let mut transaction = connection.transaction().unwrap();
    let row = transaction.query_one(lock().attempt(), &[]).unwrap();
    let epoch: i64 = row.get(0);
    lock().check(epoch).unwrap().unwrap();
    // Nothing is granted from here on if the clock is behind that.
    let condition = format!("{LIMIT}{epoch} THEN");
    assert!(lock().attempt().contains(&condition), "{condition}");
}

fn busy_lock_leaves_the_transaction_as_it_was(kind: PostgresKind) {
    let server = start(kind);
    let keeper = open(&server.url());
    let guard = keeper.lock("seat:42").unwrap();
    let mut connection = connect(&server);
    let mut transaction = connection.transaction().unwrap();
    let limit = |transaction: &mut Transaction<'_>| {
        let row = transaction.query_one("SHOW lock_timeout", &[]).unwrap();
        row.get::<_, String>(0)
    };
    transaction
        .batch_execute("SET LOCAL lock_timeout = '7s'")
        .unwrap();
    assert_refused(take(&keeper, &mut transaction, SHORT), ErrorKind::TimedOut);
    assert_eq!(limit(&mut transaction), "7s");
    guard.release().unwrap();
    take(&keeper, &mut transaction, SHORT).unwrap();
    assert_eq!(limit(&mut transaction), "7s");
    assert!(keeper.try_lock("seat:42").unwrap().is_none());
    transaction.rollback().unwrap();
    assert!(keeper.try_lock("seat:42").unwrap().is_some());
}

fn transaction_waits_for_a_guard(kind: PostgresKind) {
    let server = start(kind);
    let keeper = open(&server.url());
    let guard = keeper.lock("seat:42").unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut connection = connect(&server);
            let mut transaction = connection.transaction().unwrap();
            transaction
                .batch_execute("SET LOCAL lock_timeout = '7s'")
                .unwrap();
            take(&keeper, &mut transaction, LONG).unwrap();
            let row = transaction.query_one("SHOW lock_timeout", &[]).unwrap();
            assert_eq!(row.get::<_, &str>(0), "7s");
            // The lock was taken in a subtransaction, and outlives that.
            assert!(keeper.try_lock("seat:42").unwrap().is_none());
        });
        until("the transaction waits", || {
            server.value(WAITING).unwrap() == "1"
        });
        guard.release().unwrap();
        waits.join().unwrap();
    });
}

fn lock_of_another_database_is_refused(kind: PostgresKind) {
    let server = PostgresServer::start(kind, &PostgresOptions::new()).unwrap();
    server.execute("CREATE DATABASE other").unwrap();
    let mut connection = connect(&server);
    let mut transaction = connection.transaction().unwrap();
    let url = server.url();
    let (host, _) = url.rsplit_once('/').unwrap();
    let keeper = open(&format!("{host}/other"));
    assert_refused(
        take(&keeper, &mut transaction, LONG),
        ErrorKind::Incompatible,
    );
    let keeper = lockkeeper::open("memory:").unwrap();
    assert_refused(
        take(&keeper, &mut transaction, LONG),
        ErrorKind::Unsupported,
    );
}
