//! How transactions of Diesel end under a lock, on real servers and a SQLite file.
//!
//! `scripts/examples diesel` runs it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool};
use diesel::result::Error as DieselError;
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::transactions::{CommitError, CommitIn, LockInTransaction, TransactionLockError};
use lockkeeper::{ErrorKind, LockGuard, LockKeeper};
use lockkeeper_testkit::{
    Fault, MySqlKind, MySqlOptions, MySqlServer, PostgresKind, PostgresOptions, PostgresServer,
    Proxy,
};

type Ended = Result<(), CommitError<DieselError, DieselError>>;

diesel::table! {
    sold (id) { id -> BigInt }
}

const TABLE: &str = "CREATE TABLE sold (id BIGINT NOT NULL)";

/// Each connection has types of its own, so the cases are written for all of them by a macro.
macro_rules! cases {
    ($name:ident, $connection:ty) => {
        mod $name {
            use super::*;

            fn sell(guard: &LockGuard, data: &mut $connection, then: impl FnOnce()) -> Ended {
                guard.commit_in(data, |data| {
                    diesel::insert_into(sold::table)
                        .values(sold::id.eq(1))
                        .execute(data)?;
                    then();
                    Ok(())
                })
            }

            fn rows(data: &mut $connection) -> i64 {
                sold::table.count().get_result(data).unwrap()
            }

            /// Tries every end of a transaction that needs no fault of the network. `is_by_statement`: data and
            /// locks are on one server, so that the keeper is asked for nothing.
            pub(super) fn ends(data: &mut $connection, url: &str, is_by_statement: bool) {
                data.batch_execute(TABLE).unwrap();
                let [keeper, operator] = [(); 2].map(|()| lockkeeper::open(url).unwrap());
                let guard = keeper.lock("seat:42").unwrap();

                let requests = || keeper.usage().unwrap().commands;
                let before = requests();
                sell(&guard, data, || {}).unwrap();
                assert_eq!((rows(data), requests() == before), (1, is_by_statement));

                let failed: Ended = guard.commit_in(data, |data| {
                    diesel::delete(sold::table).execute(data)?;
                    Err(DieselError::RollbackTransaction)
                });
                let Err(CommitError::Work(DieselError::RollbackTransaction)) = failed else {
                    panic!("{failed:?}");
                };

                // A nested transaction is a savepoint, and a panic in it rolls back all.
                let result = catch_unwind(AssertUnwindSafe(|| {
                    let _: Ended = guard.commit_in(data, |data| {
                        diesel::delete(sold::table).execute(data)?;
                        data.transaction(|_| resume_unwind(Box::new("full")))
                    });
                }));
                assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "full");
                assert_eq!(rows(data), 1);

                // A commit within a transaction would commit nothing.
                let nested: Result<(), DieselError> = data.transaction(|data| {
                    let inner = sell(&guard, data, || panic!("the work ran"));
                    let Err(CommitError::Database(DieselError::AlreadyInTransaction)) = inner
                    else {
                        panic!("{inner:?}");
                    };
                    Ok(())
                });
                nested.unwrap();

                // What the work itself has committed is not rolled back.
                let committed: Ended = guard.commit_in(data, |data| {
                    diesel::delete(sold::table).execute(data)?;
                    data.batch_execute("COMMIT")?;
                    Err(DieselError::RollbackTransaction)
                });
                assert!(
                    matches!(committed, Err(CommitError::Unknown(_))),
                    "{committed:?}"
                );
                assert_eq!(rows(data), 0);
                sell(&guard, data, || {}).unwrap();

                // Nor is a transaction committed that Diesel does not know of.
                data.batch_execute("BEGIN; DELETE FROM sold").unwrap();
                let inside = sell(&guard, data, || panic!("the work ran"));
                assert!(
                    matches!(inside, Err(CommitError::Database(_))),
                    "{inside:?}"
                );
                data.batch_execute("ROLLBACK").unwrap();
                assert_eq!(rows(data), 1);

                let lost = sell(&guard, data, || take_away(&operator, &guard));
                let Err(CommitError::Lock(error)) = lost else {
                    panic!("{lost:?}");
                };
                assert_eq!(error.kind(), ErrorKind::Lost);
                assert_eq!(rows(data), 1);

                let guard = keeper.lock("seat:42").unwrap();
                sell(&guard, data, || {}).unwrap();
                assert_eq!(rows(data), 2);
            }

            /// The connection ends before the reply to the commit.
            #[allow(dead_code, reason = "SQLite is no server")]
            pub(super) fn unanswered(data: &mut $connection, url: &str, proxy: &Proxy) {
                let keeper = lockkeeper::open(url).unwrap();
                let guard = keeper.lock("seat:42").unwrap();
                let ended = sell(&guard, data, || {
                    proxy.once("COMMIT", Fault::CutReplyAfter(0))
                });
                assert!(matches!(ended, Err(CommitError::Unknown(_))), "{ended:?}");
            }
        }
    };
}

cases!(mysql, MysqlConnection);
cases!(postgres, PgConnection);
cases!(
    pooled,
    diesel::r2d2::PooledConnection<ConnectionManager<PgConnection>>
);
cases!(sqlite, SqliteConnection);

/// Takes the lock away, as an operator does.
fn take_away(operator: &LockKeeper, guard: &LockGuard) {
    let soon = SystemClock.now() + Duration::from_secs(30);
    let admin = operator.admin().unwrap();
    let held = admin.held(Some(guard.name()), soon).unwrap().remove(0);
    assert!(admin.force_release(&held, soon).unwrap());
}

#[test]
fn mysql_says_how_a_transaction_ended() {
    let server = MySqlServer::start(MySqlKind::MariaDb10, &MySqlOptions::new()).unwrap();
    let mut data = MysqlConnection::establish(&server.url()).unwrap();
    mysql::ends(&mut data, &server.url(), true);
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut data = MysqlConnection::establish(&server.url_via(proxy.addr())).unwrap();
    mysql::unanswered(&mut data, &server.url(), &proxy);
}

#[test]
fn postgres_says_how_a_transaction_ended() {
    let server = PostgresServer::start(PostgresKind::ALL[0], &PostgresOptions::new()).unwrap();
    let mut data = PgConnection::establish(&server.url()).unwrap();
    postgres::ends(&mut data, &server.url(), true);
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut data = PgConnection::establish(&server.url_via(proxy.addr())).unwrap();
    postgres::unanswered(&mut data, &server.url(), &proxy);
}

#[test]
fn pooled_connection_says_how_a_transaction_ended() {
    let server = PostgresServer::start(PostgresKind::ALL[0], &PostgresOptions::new()).unwrap();
    let elsewhere = PostgresServer::start(PostgresKind::ALL[0], &PostgresOptions::new()).unwrap();
    let pool = Pool::new(ConnectionManager::<PgConnection>::new(server.url())).unwrap();
    pooled::ends(&mut pool.get().unwrap(), &elsewhere.url(), false);
}

#[test]
fn transaction_of_postgres_takes_a_lock_of_its_own() {
    let server = PostgresServer::start(PostgresKind::ALL[0], &PostgresOptions::new()).unwrap();
    let keeper = lockkeeper::open(&server.url()).unwrap();
    let mut data = PgConnection::establish(&server.url()).unwrap();
    let take =
        |data: &mut PgConnection| keeper.lock_in_transaction(data, "seat:42", Duration::ZERO);

    let outside = take(&mut data);
    let Err(TransactionLockError::Database(DieselError::NotInTransaction)) = outside else {
        panic!("{outside:?}");
    };

    let inside: Result<(), DieselError> = data.transaction(|data| {
        take(data).unwrap();
        assert!(keeper.try_lock("seat:42").unwrap().is_none());
        Ok(())
    });
    inside.unwrap();
    assert!(keeper.try_lock("seat:42").unwrap().is_some());
}

#[test]
fn sqlite_says_how_a_transaction_ended() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    let mut data = SqliteConnection::establish(&file("data.db")).unwrap();
    sqlite::ends(&mut data, &format!("sqlite:{}", file("locks.db")), false);
}
