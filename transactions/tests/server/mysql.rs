//! The crate `mysql`, on MySQL and MariaDB.

use libtest_mimic::Trial;
use lockkeeper::transactions::{CommitError, CommitIn as _};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{MySqlKind, MySqlServer, Proxy, Shared, cases};
use mysql::prelude::Queryable as _;
use mysql::{Conn, Error, Opts, Pool, PooledConn};

use crate::application::{Application, Proved};
use crate::cases;

/// The error of a deadlock, after which the server has rolled the transaction back.
const DEADLOCK: u16 = 1213;

pub(crate) fn start(kind: MySqlKind) -> Shared<MySqlServer> {
    Shared::take(kind).unwrap()
}

pub(crate) fn connect(url: &str) -> Conn {
    let mut connection = Conn::new(Opts::from_url(url).unwrap()).unwrap();
    connection.query_drop("DROP TABLE IF EXISTS sold").unwrap();
    connection
        .query_drop("CREATE TABLE sold (id BIGINT PRIMARY KEY AUTO_INCREMENT)")
        .unwrap();
    connection
}

impl Application for Conn {
    const SELL: &'static str = "INSERT INTO sold VALUES ()";
    const COMMIT: &'static str = "CREATE OR REPLACE VIEW all_sold AS SELECT * FROM sold";

    fn run_outside(&mut self, sql: &str) {
        self.query_drop(sql).unwrap();
    }
}

impl Application for PooledConn {
    const SELL: &'static str = Conn::SELL;

    fn run_outside(&mut self, sql: &str) {
        self.query_drop(sql).unwrap();
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let on_server = |kind, case: fn(&str, &mut _)| {
        let server = start(kind);
        case(&server.url(), &mut connect(&server.url()));
    };
    crate::on_each_kind(on_server, CASES)
}

const CASES: &[Case<MySqlKind>] = cases![
    pooled_connection_proves_the_lock,
    lock_on_another_server_is_renewed,
    deadlock_is_rolled_back,
    row_that_was_changed_since_is_rolled_back,
    commit_in_the_work_is_unknown_after_a_deadlock,
    commit_without_a_reply_is_unknown,
];

fn pooled_connection_proves_the_lock(kind: MySqlKind) {
    let server = start(kind);
    connect(&server.url());
    let pool = Pool::new(Opts::from_url(&server.url()).unwrap()).unwrap();
    let mut connection = pool.get_conn().unwrap();
    cases::commit(&server.url(), &mut connection, Proved::ByStatement);
}

fn lock_on_another_server_is_renewed(kind: MySqlKind) {
    let (server, elsewhere) = (start(kind), start(kind));
    let mut connection = connect(&server.url());
    cases::commit(&elsewhere.url(), &mut connection, Proved::ByRenewal);
}

fn commit_without_a_reply_is_unknown(kind: MySqlKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let via = format!("{}?prefer_socket=false", server.url_via(proxy.addr()));
    cases::unanswered_commit(&server.url(), &mut connect(&via), &proxy);
    let mut other = Conn::new(Opts::from_url(&server.url()).unwrap()).unwrap();
    assert_eq!(other.sold(), 1);
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

/// MariaDB ends the transaction, as after a deadlock. MySQL changes the row.
fn row_that_was_changed_since_is_rolled_back(kind: MySqlKind) {
    let server = start(kind);
    let [mut first, mut second] = [(); 2].map(|()| connect(&server.url()));
    first.query_drop("INSERT INTO sold VALUES (1)").unwrap();
    let keeper = cases::open(&server.url());
    let guard = keeper.lock("seat:42").unwrap();
    let ended = guard.commit_in(&mut first, |transaction| {
        transaction.query_drop("SELECT * FROM sold")?;
        second.query_drop("UPDATE sold SET id = 2")?;
        transaction.query_drop("UPDATE sold SET id = 3")
    });
    match (kind, ended) {
        (MySqlKind::MariaDb10, Err(CommitError::Work(Error::MySqlError(error)))) => {
            assert_eq!(error.code, 1020);
        }
        (MySqlKind::MySql9, Ok(())) => {}
        (_, ended) => panic!("{ended:?}"),
    }
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
        transaction.query_drop(Conn::SELL)?;
        transaction.query_drop("COMMIT")?;
        Err::<(), _>(Error::server_disconnected())
    });
    assert!(matches!(ended, Err(CommitError::Unknown(_))), "{ended:?}");
    assert_eq!(connection.sold(), 1);
}
