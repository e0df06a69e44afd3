//! On MariaDB and MySQL servers that run already.

use lockkeeper_compare::{Comparison, Error, Scenario, Strategy};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer, until};

use crate::rig::{gather, is_right, of, rows, run};

/// What must show nowhere.
const PASSWORD: &str = MySqlServer::PASSWORD;

pub(crate) const CASES: &[Case<MySqlKind>] = &[
    (
        "gather_admits_as_many_as_seats",
        gather_admits_as_many_as_seats,
    ),
    (
        "every_row_has_its_expected_verdict",
        every_row_has_its_expected_verdict,
    ),
    (
        "shared_pool_starves_and_early_release_oversells",
        shared_pool_starves_and_early_release_oversells,
    ),
    (
        "every_form_of_url_reaches_the_server",
        every_form_of_url_reaches_the_server,
    ),
    ("passwords_are_not_shown", passwords_are_not_shown),
];

fn start(kind: MySqlKind, options: MySqlOptions) -> MySqlServer {
    // Some strategies take a connection for each thread.
    MySqlServer::start(kind, &options.config("max-connections", "300")).unwrap()
}

/// Asserts that neither tables nor sessions are left.
#[track_caller]
fn assert_cleaned_up(server: &MySqlServer) {
    let tables = format!("SHOW TABLES FROM {}", MySqlServer::DATABASE);
    assert_eq!(server.value(&tables).unwrap(), None);
    // The server notices the end of a session with a delay.
    until("no session is left", || {
        server.sessions().unwrap().is_empty()
    });
}

fn gather_admits_as_many_as_seats(kind: MySqlKind) {
    let server = start(kind, MySqlOptions::new());
    let rows = rows(&gather(), &server.url(), PASSWORD);
    let (control, ours) = (of(&rows, Strategy::None), of(&rows, Strategy::Lockkeeper));
    assert!(control.admitted > 5, "{control:?}");
    assert_eq!((ours.admitted, ours.turned_away), (5, 95), "{ours:?}");
    assert_cleaned_up(&server);
}

fn every_row_has_its_expected_verdict(kind: MySqlKind) {
    let server = start(kind, MySqlOptions::new());
    rows(&Comparison::new().threads(20), &server.url(), PASSWORD);
    assert_cleaned_up(&server);
}

fn shared_pool_starves_and_early_release_oversells(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new()).unwrap();
    let url = server.url();
    let gathered = rows(&gather(), &url, PASSWORD);
    assert_eq!(gathered.len(), 5);
    for row in &gathered {
        assert!(!is_right(row) || row.admitted == 5, "{row:?}");
    }
    let shared = of(&gathered, Strategy::NamedLockSharedPool);
    let ours = of(&gathered, Strategy::Lockkeeper);
    let named = of(&gathered, Strategy::NamedLock);
    assert!(named.connections > Some(1), "{named:?}");
    assert_eq!(shared.connections, Some(10), "{shared:?}");
    assert!(shared.faults.join("\n").contains("requests failed"));
    assert_eq!(ours.connections, Some(1), "{ours:?}");
    assert!(
        ours.commands_per_grant < named.commands_per_grant,
        "{ours:?}"
    );

    let seat = Comparison::new().scenarios([Scenario::Seat]);
    let seat = rows(&seat, &url, PASSWORD);
    assert_eq!(seat.len(), 5);
    for row in &seat {
        assert_eq!(row.admitted == 1, is_right(row), "{row:?}");
    }

    let without = url.trim_end_matches(MySqlServer::DATABASE);
    let error = run(&Comparison::new(), without, PASSWORD).unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("names no database")),
        "{error}"
    );
}

fn every_form_of_url_reaches_the_server(kind: MySqlKind) {
    let server = start(kind, MySqlOptions::new().tls());
    let authority = server.certificates().unwrap().authority.clone();
    let (user, database) = (MySqlServer::USER, MySqlServer::DATABASE);
    let login = format!("user={user}&password={PASSWORD}&db={database}");
    let urls = [
        server.url().replacen("mysql:", "mariadb:", 1),
        format!("mysql://{}?{login}", server.addr()),
        format!("mysql:?socket={}&{login}", server.socket().display()),
        format!("{}?tls=on&ca_file={}", server.url(), authority.display()),
    ];
    for url in urls {
        let rows = rows(&gather().threads(10), &url, PASSWORD);
        let ours = of(&rows, Strategy::Lockkeeper);
        assert_eq!(ours.admitted, 5, "{ours:?}");
        assert_cleaned_up(&server);
    }
}

fn passwords_are_not_shown(kind: MySqlKind) {
    let secret = "swordfish-4711";
    let server = start(kind, MySqlOptions::new());
    let addr = server.addr();
    for (url, is_valid) in [
        (format!("mysql://me:{secret}@{addr}"), true),
        (format!("mysql://{addr}?user=me&password={secret}"), true),
        (format!("mysql://me:{secret}@{addr}?tlt=5s"), false),
        (format!("mysql://me:{secret}@[::1/"), false),
    ] {
        let error = run(&Comparison::new(), &url, secret).unwrap_err();
        assert_eq!(matches!(error, Error::Failed(_)), is_valid, "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}
