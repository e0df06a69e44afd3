//! What the cases share: servers, a comparison on one store that must leave nothing behind, and its rows.

use std::any::Any;
use std::env;
use std::process::ExitCode;
use std::time::Duration;

use lockkeeper_compare::{Comparison, Error, Report, Row, Scenario, Strategy, holder};
use lockkeeper_testkit::{
    ConsulOptions, ConsulServer, EtcdOptions, EtcdServer, MySqlOptions, MySqlServer,
    PostgresOptions, PostgresServer, RedisOptions, RedisServer, StoreKind, TestServer,
    ZooKeeperOptions, ZooKeeperServer, until, with_timeouts,
};
use serde_json::json;

/// The argument that makes this program the process that `crash` and `limit` kill.
pub(crate) const HOLDER: &str = "--holder";

/// A node of ZooKeeper that a URL may name.
pub(crate) const APP: &str = "/app";

/// The password of the servers that have one.
pub(crate) const PASSWORD: &str = MySqlServer::PASSWORD;

/// Is the process that `crash` and `limit` kill.
pub(crate) fn hold() -> ExitCode {
    match holder::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts a server, which speaks TLS beside plain text if `is_tls`.
pub(crate) fn start(kind: StoreKind, is_tls: bool) -> Box<dyn TestServer> {
    match kind {
        StoreKind::Redis(kind) => {
            let options = match is_tls {
                true => RedisOptions::new().password(PASSWORD).tls(),
                false => RedisOptions::new(),
            };
            Box::new(RedisServer::start(kind, &options).unwrap())
        }
        StoreKind::MySql(kind) => {
            // Some strategies take a connection for each thread.
            let options = MySqlOptions::new().show_locks();
            let options = options.config("max-connections", "300");
            let options = if is_tls { options.tls() } else { options };
            Box::new(MySqlServer::start(kind, &options).unwrap())
        }
        StoreKind::Postgres(kind) => {
            let options = PostgresOptions::new();
            let options = if is_tls { options.tls() } else { options };
            Box::new(PostgresServer::start(kind, &options).unwrap())
        }
        StoreKind::Etcd(kind) => {
            let options = EtcdOptions::new();
            let options = if is_tls { options.tls() } else { options };
            Box::new(EtcdServer::start(kind, &options).unwrap())
        }
        StoreKind::Consul(kind) => {
            let options = ConsulOptions::new();
            let options = if is_tls { options.tls() } else { options };
            Box::new(ConsulServer::start(kind, &options).unwrap())
        }
        StoreKind::ZooKeeper(kind) => {
            let options = ZooKeeperOptions::new();
            let options = if is_tls { options.tls() } else { options };
            Box::new(ZooKeeperServer::start(kind, &options).unwrap())
        }
        other => panic!("{other} is no single server"),
    }
}

/// Returns the server as what it is.
pub(crate) fn as_server<S: TestServer>(server: &dyn TestServer) -> Option<&S> {
    let server: &dyn Any = server;
    server.downcast_ref()
}

/// Asserts that neither locks, data nor sessions are left.
#[track_caller]
pub(crate) fn assert_cleaned_up(server: &dyn TestServer) {
    assert_eq!(server.leftovers().unwrap(), Vec::<String>::new());
    if let Some(server) = as_server::<MySqlServer>(server) {
        let tables = format!(
            "SHOW TABLES FROM {} LIKE 'lockkeeper_compare%'",
            MySqlServer::DATABASE
        );
        assert_eq!(server.value(&tables).unwrap(), None);
    }
    if let Some(server) = as_server::<PostgresServer>(server) {
        let tables = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'lockkeeper_compare%'";
        assert_eq!(server.value(tables).unwrap(), "");
    }
    if let Some(server) = as_server::<EtcdServer>(server) {
        let all = json!({ "key": "AA==", "range_end": "AA==", "count_only": true });
        let all = server.call("/v3/kv/range", &all).unwrap();
        let ours = server.keys("lockkeeper/").unwrap().len();
        assert_eq!(all["count"].as_str().unwrap_or("0"), ours.to_string());
    }
    if let Some(server) = as_server::<ConsulServer>(server) {
        assert_eq!(server.keys("lockkeeper_compare").unwrap(), []);
    }
    if let Some(server) = as_server::<ZooKeeperServer>(server) {
        for folder in ["/", APP] {
            let nodes = server.client().unwrap().children(folder).unwrap();
            let mut ours = nodes.iter().filter(|it| it.starts_with("lockkeeper_"));
            assert_eq!(ours.next(), None);
        }
    }
    // The server notices the end of a session with a delay.
    until("no session is left", || {
        server.connections().unwrap().is_empty()
    });
}

pub(crate) fn gather() -> Comparison {
    Comparison::new().scenarios([Scenario::Gather])
}

/// Runs `comparison` on `url`. It must leave no file behind, and must not show `secret`.
pub(crate) fn run(comparison: &Comparison, url: &str, secret: &str) -> Result<Report, Error> {
    let folder = tempfile::tempdir().unwrap();
    let comparison = comparison
        .clone()
        .url(url)
        .holder(env::current_exe().unwrap(), [HOLDER])
        .temp_dir(folder.path());
    let result = comparison.run();
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    let shown = match &result {
        Ok(report) => report.to_text() + &report.to_html(),
        Err(error) => error.to_string(),
    };
    assert!(!format!("{shown}{result:?}{comparison:?}").contains(secret));
    result
}

/// Returns the rows of a comparison that ran to its end, with the verdicts that they must have. On a busy machine, a
/// reply takes its time.
pub(crate) fn rows(comparison: &Comparison, url: &str) -> Vec<Row> {
    let url = with_timeouts(url, Duration::from_secs(30));
    let report = run(comparison, &url, PASSWORD).unwrap();
    assert!(report.ended_by.is_none(), "{:?}", report.ended_by);
    for row in &report.rows {
        assert_eq!(row.verdict, row.expected, "{row:?}");
    }
    report.rows
}

/// Finds the row of a strategy in a scenario.
pub(crate) fn of(rows: &[Row], scenario: Scenario, strategy: Strategy) -> &Row {
    let mut found = rows.iter().filter(|row| row.scenario == scenario);
    let row = found.find(|row| row.strategy == strategy);
    row.unwrap_or_else(|| panic!("no {strategy} in {rows:#?}"))
}
