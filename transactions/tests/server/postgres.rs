//! The crate `postgres`.

use libtest_mimic::Trial;
use lockkeeper::transactions::{CommitError, CommitIn as _};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{PostgresKind, PostgresServer, Proxy, Shared, cases};
use postgres::{Client, Error, NoTls};

use crate::application::{Application, Proved, sell};
use crate::cases;

pub(crate) fn start(kind: PostgresKind) -> Shared<PostgresServer> {
    Shared::take(kind).unwrap()
}

pub(crate) fn connect(url: &str) -> Client {
    let mut connection = Client::connect(url, NoTls).unwrap();
    connection
        .batch_execute(
            "DROP TABLE IF EXISTS sold; \
             CREATE TABLE sold (id BIGINT GENERATED ALWAYS AS IDENTITY, seat INT DEFAULT 42)",
        )
        .unwrap();
    connection
}

impl Application for Client {
    const SELL: &'static str = "INSERT INTO sold DEFAULT VALUES";

    fn run_outside(&mut self, sql: &str) {
        self.batch_execute(sql).unwrap();
    }
}

pub(crate) fn trials() -> Vec<Trial> {
    let on_server = |kind, case: fn(&str, &mut _)| {
        let server = start(kind);
        case(&server.url(), &mut connect(&server.url()));
    };
    crate::on_each_kind(on_server, CASES)
}

const CASES: &[Case<PostgresKind>] = cases![
    lock_on_another_server_is_renewed,
    commit_without_a_reply_is_unknown,
    refused_commit_is_rolled_back,
    swallowed_error_is_not_committed,
];

fn lock_on_another_server_is_renewed(kind: PostgresKind) {
    let (server, elsewhere) = (start(kind), start(kind));
    let mut connection = connect(&server.url());
    cases::commit(&elsewhere.url(), &mut connection, Proved::ByRenewal);
}

fn commit_without_a_reply_is_unknown(kind: PostgresKind) {
    let server = start(kind);
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut connection = connect(&server.url_via(proxy.addr()));
    cases::unanswered_commit(&server.url(), &mut connection, &proxy);
    assert_eq!(server.value("SELECT count(*) FROM sold").unwrap(), "1");
}

fn refused_commit_is_rolled_back(kind: PostgresKind) {
    let server = start(kind);
    let mut connection = connect(&server.url());
    // A condition that the server checks at the commit.
    connection
        .batch_execute("ALTER TABLE sold ADD UNIQUE (seat) DEFERRABLE INITIALLY DEFERRED")
        .unwrap();
    let keeper = cases::open(&server.url());
    let guard = keeper.lock("seat:42").unwrap();
    assert_eq!(sell(&guard, &mut connection, || {}).unwrap(), 7);
    let ended = sell(&guard, &mut connection, || {});
    let Err(error @ CommitError::Database(_)) = ended else {
        panic!("{ended:?}");
    };
    assert!(error.is_rolled_back() && error.to_string().contains("rolled back by the database"));
    assert_eq!(connection.sold(), 1);
}

fn swallowed_error_is_not_committed(kind: PostgresKind) {
    let server = start(kind);
    let mut connection = connect(&server.url());
    let elsewhere = lockkeeper::open("memory:").unwrap();
    let guard = elsewhere.lock("seat:42").unwrap();
    let ended = guard.commit_in(&mut connection, |transaction| {
        transaction.batch_execute(Client::SELL)?;
        let _ = transaction.batch_execute("SELECT 1 / 0");
        Ok::<_, Error>(())
    });
    assert!(matches!(ended, Err(CommitError::Database(_))), "{ended:?}");
    assert_eq!(connection.sold(), 0);
}
