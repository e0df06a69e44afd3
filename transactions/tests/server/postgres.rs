//! The crate `postgres`.

use lockkeeper::transactions::{CommitError, CommitIn as _};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{Fault, PostgresKind, PostgresOptions, PostgresServer, Proxy, Shared};
use postgres::{Client, Error, NoTls, Transaction};

use crate::application::{Application, sell};
use crate::cases::{self, Proved};

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

const SELL: &str = "INSERT INTO sold DEFAULT VALUES";

impl Application for Client {
    fn sell(transaction: &mut Transaction<'_>) -> Result<(), Error> {
        transaction.batch_execute(SELL)
    }

    fn run(transaction: &mut Transaction<'_>, sql: &str) -> Result<(), Error> {
        transaction.batch_execute(sql)
    }

    fn run_outside(&mut self, sql: &str) {
        self.batch_execute(sql).unwrap();
    }

    fn sold(&mut self) -> i64 {
        self.query_one("SELECT count(*) FROM sold", &[])
            .unwrap()
            .get(0)
    }
}

pub(crate) fn cases() -> Vec<Case<PostgresKind>> {
    vec![
        ("transaction_proves_the_lock", |kind| {
            let server = start(kind);
            cases::commit(
                &server.url(),
                &mut connect(&server.url()),
                Proved::ByStatement,
            );
        }),
        ("lock_on_another_server_is_renewed", |kind| {
            let (server, elsewhere) = (
                start(kind),
                PostgresServer::start(kind, &PostgresOptions::new()).unwrap(),
            );
            cases::commit(
                &elsewhere.url(),
                &mut connect(&server.url()),
                Proved::ByRenewal,
            );
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
            cases::commit_in_the_work(&server.url(), &mut connect(&server.url()), "COMMIT");
        }),
        ("connection_in_a_transaction_is_refused", |kind| {
            let server = start(kind);
            cases::open_transaction(&server.url(), &mut connect(&server.url()), ["BEGIN", SELL]);
        }),
        ("panic_in_the_work_is_rolled_back", |kind| {
            let server = start(kind);
            cases::panic_in_the_work(&server.url(), &mut connect(&server.url()));
        }),
        ("commit_without_a_reply_is_unknown", |kind| {
            let server = start(kind);
            let proxy = Proxy::new(server.addr()).unwrap();
            let mut connection = connect(&server.url_via(proxy.addr()));
            cases::unanswered_commit(&server.url(), &mut connection, || {
                proxy.once("COMMIT", Fault::CutReplyAfter(0));
            });
            assert_eq!(server.value("SELECT count(*) FROM sold").unwrap(), "1");
        }),
        (
            "refused_commit_is_rolled_back",
            refused_commit_is_rolled_back,
        ),
        (
            "swallowed_error_is_not_committed",
            swallowed_error_is_not_committed,
        ),
    ]
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
        Client::sell(transaction)?;
        let _ = transaction.batch_execute("SELECT 1 / 0");
        Ok::<_, Error>(())
    });
    assert!(matches!(ended, Err(CommitError::Database(_))), "{ended:?}");
    assert_eq!(connection.sold(), 0);
}
