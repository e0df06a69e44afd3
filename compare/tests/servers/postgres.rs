//! On PostgreSQL servers that run already.

use lockkeeper_compare::{Comparison, Error, Scenario, Strategy};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{PostgresKind, PostgresOptions, PostgresServer, until};

use crate::rig::{gather, of, rows, run};

/// What must show nowhere.
const PASSWORD: &str = PostgresServer::PASSWORD;

pub(crate) const CASES: &[Case<PostgresKind>] = &[
    (
        "every_row_has_its_expected_verdict",
        every_row_has_its_expected_verdict,
    ),
    (
        "every_form_of_url_reaches_the_server",
        every_form_of_url_reaches_the_server,
    ),
    ("passwords_are_not_shown", passwords_are_not_shown),
];

/// Asserts that neither tables nor sessions are left.
#[track_caller]
fn assert_cleaned_up(server: &PostgresServer) {
    let tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'";
    assert_eq!(server.rows(tables).unwrap(), Vec::<Vec<String>>::new());
    // The server notices the end of a session with a delay.
    until("no session is left", || {
        server.sessions().unwrap().is_empty()
    });
}

fn every_row_has_its_expected_verdict(kind: PostgresKind) {
    let server = PostgresServer::start(kind, &PostgresOptions::new()).unwrap();
    let rows = rows(&Comparison::new().threads(20), &server.url(), PASSWORD);
    assert_eq!(rows.len(), 46);
    for row in &rows {
        assert_eq!(row.store, "postgres");
    }
    let of = |scenario: Scenario, strategy: Strategy| {
        let mut rows = rows.iter().filter(|row| row.scenario == scenario);
        rows.find(|row| row.strategy == strategy).unwrap()
    };
    // What each technique is known for.
    let gather = |strategy| of(Scenario::Gather, strategy);
    assert!(gather(Strategy::NamedLock).connections > Some(1));
    assert!(gather(Strategy::RowLock).connections > Some(1));
    assert_eq!(gather(Strategy::Lockkeeper).connections, Some(1));
    assert_eq!(gather(Strategy::NamedLock).commands_per_grant, Some(2.0));
    let shared = gather(Strategy::NamedLockSharedPool).faults.join("\n");
    assert!(shared.contains("requests failed"), "{shared}");
    assert_cleaned_up(&server);
}

fn every_form_of_url_reaches_the_server(kind: PostgresKind) {
    let server = PostgresServer::start(kind, &PostgresOptions::new().tls()).unwrap();
    let authority = server.certificates().unwrap().authority.clone();
    let (user, database) = (PostgresServer::USER, PostgresServer::DATABASE);
    let login = format!("user={user}&password={PASSWORD}&db={database}");
    let urls = [
        server.url().replacen("postgres:", "postgresql:", 1),
        format!("postgres:?socket={}&{login}", server.socket().display()),
        format!("{}?tls=on&ca_file={}", server.url(), authority.display()),
    ];
    let only = gather()
        .strategies([
            Strategy::Optimistic,
            Strategy::NamedLock,
            Strategy::Lockkeeper,
        ])
        .threads(10);
    for url in urls {
        let rows = rows(&only, &url, PASSWORD);
        assert_eq!(rows.len(), 3);
        assert_eq!(of(&rows, Strategy::Lockkeeper).admitted, 5);
        assert_cleaned_up(&server);
    }
}

fn passwords_are_not_shown(kind: PostgresKind) {
    let secret = "swordfish-4711";
    let server = PostgresServer::start(kind, &PostgresOptions::new()).unwrap();
    let addr = server.addr();
    for (url, is_valid) in [
        (format!("postgres://keeper:{secret}@{addr}/shop"), true),
        (format!("postgres://keeper:{secret}@{addr}?tlt=5s"), false),
        (format!("postgres://keeper:{secret}@[::1/"), false),
    ] {
        let error = run(&Comparison::new(), &url, secret).unwrap_err();
        assert_eq!(matches!(error, Error::Failed(_)), is_valid, "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}
