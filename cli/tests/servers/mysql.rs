//! On MariaDB and MySQL servers that run already.

use libtest_mimic::Trial;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

use crate::rig::{compare, of, rows, trial, until};

/// What must show nowhere.
const PASSWORD: &str = MySqlServer::PASSWORD;

type Case = (&'static str, fn(MySqlKind));

const CASES: &[Case] = &[
    ("five_of_a_hundred_get_in", five_of_a_hundred_get_in),
    (
        "every_scenario_is_as_it_must_be",
        every_scenario_is_as_it_must_be,
    ),
    (
        "who_oversells_and_who_starves",
        who_oversells_and_who_starves,
    ),
    ("every_door_leads_there", every_door_leads_there),
    ("no_secret_is_shown", no_secret_is_shown),
];

pub(crate) fn trials() -> Vec<Trial> {
    let cases = MySqlKind::ALL
        .into_iter()
        .flat_map(|kind| CASES.iter().map(move |case| (kind, *case)));
    let trial = |(kind, (name, case)): (MySqlKind, Case)| {
        trial(format!("{name}::{kind}"), vec![kind.ignored()], move || {
            case(kind);
        })
    };
    cases.map(trial).collect()
}

fn start(kind: MySqlKind, options: MySqlOptions) -> MySqlServer {
    // As many as there are threads that each take one, which some ways of locking do.
    MySqlServer::start(kind, &options.config("max-connections", "300")).unwrap()
}

/// Neither tables nor connections.
#[track_caller]
fn nothing_stays(server: &MySqlServer) {
    let tables = format!("SHOW TABLES FROM {}", MySqlServer::DATABASE);
    assert_eq!(server.value(&tables).unwrap(), None);
    // The server takes its time to see that a client has gone.
    until("no session stays", || server.sessions().unwrap().is_empty());
}

fn five_of_a_hundred_get_in(kind: MySqlKind) {
    let server = start(kind, MySqlOptions::new());
    let rows = rows(&["--scenario=gather", "--url", &server.url()], PASSWORD);
    let (control, ours) = (of(&rows, "none"), of(&rows, "lockkeeper"));
    assert!(control["admitted"].as_u64() > Some(5), "{control:#}");
    assert_eq!(ours["admitted"], 5, "{ours:#}");
    assert_eq!(ours["turned_away"], 95, "{ours:#}");
    assert_eq!(ours["verdict"], "right", "{ours:#}");
    nothing_stays(&server);
}

fn every_scenario_is_as_it_must_be(kind: MySqlKind) {
    let server = start(kind, MySqlOptions::new());
    for row in rows(&["--threads=20", "--url", &server.url()], PASSWORD) {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
    }
    nothing_stays(&server);
}

fn who_oversells_and_who_starves(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new()).unwrap();
    let url = server.url();
    let gather = rows(&["--scenario=gather", "--url", &url], MySqlServer::PASSWORD);
    assert_eq!(gather.len(), 5);
    for row in &gather {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
        let is_right = row["verdict"] == "right";
        assert!(!is_right || row["admitted"] == 5, "{row:#}");
    }
    let (dry, ours) = (
        of(&gather, "named-lock-shared-pool"),
        of(&gather, "lockkeeper"),
    );
    assert!(of(&gather, "named-lock")["connections"].as_u64() > Some(20));
    assert_eq!(dry["connections"], 10, "{dry:#}");
    assert!(dry["faults"].to_string().contains("requests failed"));
    assert_eq!(ours["connections"], 1, "{ours:#}");
    assert!(ours["commands_per_grant"].as_f64() < Some(0.5), "{ours:#}");

    let seat = rows(&["--scenario=seat", "--url", &url], MySqlServer::PASSWORD);
    assert_eq!(seat.len(), 6);
    for row in &seat {
        assert_eq!(row["verdict"], row["expected"], "{row:#}");
        let is_right = row["verdict"] == "right";
        assert_eq!(row["admitted"] == 1, is_right, "{row:#}");
    }

    let without = url.trim_end_matches(MySqlServer::DATABASE);
    let output = compare(&["--url", without], MySqlServer::PASSWORD);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("names no database"));
}

fn every_door_leads_there(kind: MySqlKind) {
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
        let rows = rows(
            &["--scenario=gather", "--threads=10", "--url", &url],
            PASSWORD,
        );
        let ours = of(&rows, "lockkeeper");
        assert_eq!(ours["admitted"], 5, "{ours:#}");
        nothing_stays(&server);
    }
}

fn no_secret_is_shown(kind: MySqlKind) {
    let secret = "swordfish-4711";
    let server = start(kind, MySqlOptions::new());
    let addr = server.addr();
    for (url, code) in [
        (format!("mysql://me:{secret}@{addr}"), 1),
        (format!("mysql://{addr}?user=me&password={secret}"), 1),
        (format!("mysql://me:{secret}@{addr}?tlt=5s"), 2),
        (format!("mysql://me:{secret}@[::1/"), 2),
    ] {
        let output = compare(&["--url", &url], secret);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
