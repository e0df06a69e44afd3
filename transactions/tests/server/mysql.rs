//! The crate `mysql`, on MySQL and MariaDB.

use lockkeeper::transactions::{CommitError, CommitIn as _};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{Fault, MySqlKind, MySqlOptions, MySqlServer, Proxy, Shared};
use mysql::prelude::Queryable as _;
use mysql::{Conn, Error, Opts, Pool, PooledConn, Transaction};

use crate::application::Application;
use crate::cases::{self, Proved};

/// The error of a deadlock, after which the server has rolled the transaction back.
const DEADLOCK: u16 = 1213;

fn start(kind: MySqlKind) -> Shared<MySqlServer> {
    Shared::take(kind).unwrap()
}

fn connect(url: &str) -> Conn {
    let mut connection = Conn::new(Opts::from_url(url).unwrap()).unwrap();
    connection.query_drop("DROP TABLE IF EXISTS sold").unwrap();
    connection
        .query_drop("CREATE TABLE sold (id BIGINT PRIMARY KEY AUTO_INCREMENT)")
        .unwrap();
    connection
}

const SELL: &str = "INSERT INTO sold VALUES ()";
const SOLD: &str = "SELECT count(*) FROM sold";

impl Application for Conn {
    fn sell(transaction: &mut Transaction<'_>) -> Result<(), Error> {
        transaction.query_drop(SELL)
    }

    fn run(transaction: &mut Transaction<'_>, sql: &str) -> Result<(), Error> {
        transaction.query_drop(sql)
    }

    fn run_outside(&mut self, sql: &str) {
        self.query_drop(sql).unwrap();
    }

    fn sold(&mut self) -> i64 {
        self.query_first(SOLD).unwrap().unwrap()
    }
}

impl Application for PooledConn {
    fn sell(transaction: &mut Transaction<'_>) -> Result<(), Error> {
        transaction.query_drop(SELL)
    }

    fn run(transaction: &mut Transaction<'_>, sql: &str) -> Result<(), Error> {
        transaction.query_drop(sql)
    }

    fn run_outside(&mut self, sql: &str) {
        self.query_drop(sql).unwrap();
    }

    fn sold(&mut self) -> i64 {
        self.query_first(SOLD).unwrap().unwrap()
    }
}

pub(crate) fn cases() -> Vec<Case<MySqlKind>> {
    vec![
        ("transaction_proves_the_lock", |kind| {
            let server = start(kind);
            cases::commit(
                &server.url(),
                &mut connect(&server.url()),
                Proved::ByStatement,
            );
        }),
        ("pooled_connection_proves_the_lock", |kind| {
            let server = start(kind);
            connect(&server.url());
            let pool = Pool::new(Opts::from_url(&server.url()).unwrap()).unwrap();
            let mut connection = pool.get_conn().unwrap();
            cases::commit(&server.url(), &mut connection, Proved::ByStatement);
        }),
        ("lock_on_another_server_is_renewed", |kind| {
            let (server, elsewhere) = (
                start(kind),
                MySqlServer::start(kind, &MySqlOptions::new()).unwrap(),
            );
            cases::commit(
                &elsewhere.url(),
                &mut connect(&server.url()),
                Proved::ByRenewal,
            );
        }),
        ("lock_in_sqlite_is_renewed", |kind| {
            let (server, folder) = (start(kind), tempfile::tempdir().unwrap());
            let url = format!("sqlite:{}", folder.path().join("locks.db").display());
            cases::commit(&url, &mut connect(&server.url()), Proved::ByRenewal);
        }),
        ("failed_work_is_rolled_back", |kind| {
            let server = start(kind);
            cases::failed_work(&server.url(), &mut connect(&server.url()));
        }),
        ("loss_during_the_work_is_rolled_back", |kind| {
            let server = start(kind);
            cases::loss_during_the_work(&server.url(), &mut connect(&server.url()));
        }),
        ("transaction_proves_the_locks_of_several_names", |kind| {
            let server = start(kind);
            cases::commit_under_several(
                &server.url(),
                &mut connect(&server.url()),
                Proved::ByStatement,
            );
        }),
        ("loss_of_one_of_several_names_is_rolled_back", |kind| {
            let server = start(kind);
            cases::loss_of_one_of_several(&server.url(), &mut connect(&server.url()));
        }),
        ("commit_in_the_work_is_unknown", |kind| {
            let server = start(kind);
            let mut connection = connect(&server.url());
            let implicit = "CREATE OR REPLACE VIEW all_sold AS SELECT * FROM sold";
            cases::commit_in_the_work(&server.url(), &mut connection, implicit);
        }),
        ("connection_in_a_transaction_is_refused", |kind| {
            let server = start(kind);
            cases::open_transaction(&server.url(), &mut connect(&server.url()), ["BEGIN", SELL]);
        }),
        ("deadlock_is_rolled_back", deadlock_is_rolled_back),
        (
            "commit_in_the_work_is_unknown_after_a_deadlock",
            commit_in_the_work_is_unknown_after_a_deadlock,
        ),
        ("panic_in_the_work_is_rolled_back", |kind| {
            let server = start(kind);
            cases::panic_in_the_work(&server.url(), &mut connect(&server.url()));
        }),
        ("commit_without_a_reply_is_unknown", |kind| {
            let server = start(kind);
            let proxy = Proxy::new(server.addr()).unwrap();
            let via = format!("{}?prefer_socket=false", server.url_via(proxy.addr()));
            let mut connection = connect(&via);
            cases::unanswered_commit(&server.url(), &mut connection, || {
                proxy.once("COMMIT", Fault::CutReplyAfter(0));
            });
            let mut other = Conn::new(Opts::from_url(&server.url()).unwrap()).unwrap();
            assert_eq!(other.sold(), 1);
        }),
    ]
}

/// The server itself ends the transaction, so the error of the work stays what it is.
fn deadlock_is_rolled_back(kind: MySqlKind) {
    let server = start(kind);
    let [mut first, mut second] = [(); 2].map(|()| connect(&server.url()));
    first
        .query_drop("INSERT INTO sold VALUES (1), (2)")
        .unwrap();
    let update = |id: u8| format!("UPDATE sold SET id = id WHERE id = {id}");
    // The transaction that has changed less is rolled back.
    second.query_drop("BEGIN").unwrap();
    second
        .query_drop("INSERT INTO sold VALUES (10), (11), (12)")
        .unwrap();
    second.query_drop(update(1)).unwrap();
    let keeper = cases::open(&server.url());
    let guard = keeper.lock("seat:42").unwrap();
    let ended = std::thread::scope(|scope| {
        guard.commit_in(&mut first, |transaction| {
            transaction.query_drop(update(2))?;
            let other = scope.spawn(|| {
                second
                    .query_drop(update(2))
                    .and_then(|()| second.query_drop("COMMIT"))
            });
            let failed = transaction.query_drop(update(1));
            other.join().unwrap().unwrap();
            failed
        })
    });
    let Err(CommitError::Work(Error::MySqlError(error))) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(error.code, DEADLOCK);
}

/// The error of an earlier work is no reason for the end of this transaction.
fn commit_in_the_work_is_unknown_after_a_deadlock(kind: MySqlKind) {
    let server = start(kind);
    let mut connection = connect(&server.url());
    let keeper = cases::open(&server.url());
    let guard = keeper.lock("seat:42").unwrap();
    let deadlock = format!("SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = {DEADLOCK}");
    let ended = guard.commit_in(&mut connection, |transaction| {
        transaction.query_drop(&deadlock)
    });
    assert!(matches!(ended, Err(CommitError::Work(_))), "{ended:?}");
    let ended = guard.commit_in(&mut connection, |transaction| {
        transaction.query_drop(SELL)?;
        transaction.query_drop("COMMIT")?;
        Err::<(), _>(Error::server_disconnected())
    });
    assert!(matches!(ended, Err(CommitError::Unknown(_))), "{ended:?}");
    assert_eq!(connection.sold(), 1);
}
