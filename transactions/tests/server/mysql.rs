//! The crate `mysql`, on MySQL and MariaDB.

use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{
    Fault, MySqlKind, MySqlOptions, MySqlServer, PooledServer, Proxy, ServerPool,
};
use mysql::prelude::Queryable as _;
use mysql::{Conn, Error, Opts, Pool, PooledConn, Transaction};

use crate::application::Application;
use crate::cases::{self, Proved};

static SERVERS: ServerPool<MySqlKind, MySqlServer> = ServerPool::new(
    |kind| MySqlServer::start(kind, &MySqlOptions::new()),
    MySqlServer::end_sessions,
);

fn start(kind: MySqlKind) -> PooledServer<MySqlKind, MySqlServer> {
    SERVERS.take(kind).unwrap()
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

    fn sold(&mut self) -> i64 {
        self.query_first(SOLD).unwrap().unwrap()
    }
}

impl Application for PooledConn {
    fn sell(transaction: &mut Transaction<'_>) -> Result<(), Error> {
        transaction.query_drop(SELL)
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
