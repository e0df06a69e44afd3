//! How transactions of Diesel end under a lock, on real servers and a SQLite file: the cases of all drivers, and those of
//! Diesel alone.
//!
//! `scripts/examples diesel` runs it.

#[path = "../../../transactions/tests/server/application.rs"]
mod application;
#[path = "../../../transactions/tests/server/cases.rs"]
mod cases;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use diesel::connection::SimpleConnection;
use diesel::prelude::*;
use diesel::r2d2::{ConnectionManager, Pool, PooledConnection};
use diesel::result::Error as DieselError;
use lockkeeper::transactions::{
    CommitError, CommitIn, DieselKind, LockInTransaction, Transactional, TransactionLockError,
};
use lockkeeper_testkit::{
    MySqlKind, MySqlOptions, MySqlServer, PostgresKind, PostgresOptions, PostgresServer, Proxy,
};

use application::{Application, Ended, Proved, sell};

const SELL: &str = "INSERT INTO sold VALUES (1)";

macro_rules! applications {
    ($($connection:ty, $proved:ident;)*) => {$(
        impl Application<DieselKind> for $connection {
            const PROVED: Proved = Proved::$proved;
            const SELL: &'static str = SELL;

            fn run_outside(&mut self, sql: &str) {
                self.batch_execute(sql).unwrap();
            }
        }
    )*};
}

applications! {
    MysqlConnection, ByStatement;
    PgConnection, ByStatement;
    // Its locks are on another server.
    PooledConnection<ConnectionManager<PgConnection>>, ByRenewal;
    SqliteConnection, ByRenewal;
}

/// Tries every end of a transaction that needs no fault of the network.
fn ends<C>(data: &mut C, url: &str)
where
    C: Application<DieselKind, Error = DieselError> + Connection,
    C: for<'c> Transactional<DieselKind, Transaction<'c> = C>,
{
    data.run_outside("CREATE TABLE sold (id BIGINT NOT NULL)");
    for (name, case) in cases::all() {
        println!("{name}");
        data.run_outside("DELETE FROM sold");
        case(url, data);
    }
    nested(data, url);
}

/// Checks a transaction within the work, and the work within a transaction of Diesel.
fn nested<C>(data: &mut C, url: &str)
where
    C: Application<DieselKind, Error = DieselError> + Connection,
    C: for<'c> Transactional<DieselKind, Transaction<'c> = C>,
{
    let before = data.sold();
    let keeper = cases::open(url);
    let guard = keeper.lock("seat:42").unwrap();
    // A nested transaction is a savepoint, and a panic in it rolls back all.
    let result = catch_unwind(AssertUnwindSafe(|| {
        let _: Ended<(), DieselError, C, DieselKind> = guard.commit_in(data, |data| {
            data.batch_execute(SELL)?;
            data.transaction(|_| resume_unwind(Box::new("full")))
        });
    }));
    assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "full");
    assert_eq!(data.sold(), before);

    // A commit within a transaction would commit nothing.
    let nested: Result<(), DieselError> = data.transaction(|data| {
        let inner = sell(&guard, data, || panic!("the work ran"));
        let Err(CommitError::Database(DieselError::AlreadyInTransaction)) = inner else {
            panic!("{inner:?}");
        };
        Ok(())
    });
    nested.unwrap();
}

#[test]
fn mysql_says_how_a_transaction_ended() {
    let server = MySqlServer::start(MySqlKind::MariaDb10, &MySqlOptions::new()).unwrap();
    ends(&mut MysqlConnection::establish(&server.url()).unwrap(), &server.url());
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut data = MysqlConnection::establish(&server.url_via(proxy.addr())).unwrap();
    cases::unanswered_commit(&server.url(), &mut data, &proxy);
}

#[test]
fn postgres_says_how_a_transaction_ended() {
    let server = PostgresServer::start(PostgresKind::ALL[0], &PostgresOptions::new()).unwrap();
    ends(&mut PgConnection::establish(&server.url()).unwrap(), &server.url());
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut data = PgConnection::establish(&server.url_via(proxy.addr())).unwrap();
    cases::unanswered_commit(&server.url(), &mut data, &proxy);
}

#[test]
fn pooled_connection_says_how_a_transaction_ended() {
    let server = PostgresServer::start(PostgresKind::ALL[0], &PostgresOptions::new()).unwrap();
    let elsewhere = PostgresServer::start(PostgresKind::ALL[0], &PostgresOptions::new()).unwrap();
    let pool = Pool::new(ConnectionManager::<PgConnection>::new(server.url())).unwrap();
    ends(&mut pool.get().unwrap(), &elsewhere.url());
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
    ends(&mut data, &format!("sqlite:{}", file("locks.db")));
}
