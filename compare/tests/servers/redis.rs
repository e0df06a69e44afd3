//! On Redis and Valkey servers that run already.

use lockkeeper_compare::{Comparison, Error, Row, Scenario, Strategy};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer};

use crate::rig::{gather, of, rows, run};

/// What must show nowhere.
const PASSWORD: &str = "swordfish-4711";

pub(crate) const CASES: &[Case<RedisKind>] = &[
    (
        "gather_admits_as_many_as_seats",
        gather_admits_as_many_as_seats,
    ),
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

/// Asserts that only the last epoch of all locks is left.
fn assert_cleaned_up(server: &RedisServer) {
    let mut client = server.client().unwrap();
    for key in client.command(&["KEYS", "*"]).unwrap().items() {
        let key = key.text().unwrap();
        assert_eq!(key, "lockkeeper:{default}:epoch");
    }
}

fn gather_admits_as_many_as_seats(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new()).unwrap();
    let before = server.calls().unwrap();
    // The other strategies run scripts, too.
    let only = gather().strategies([Strategy::None, Strategy::Lockkeeper]);
    let rows = rows(&only, &server.url(), PASSWORD);
    let calls = server.calls().unwrap();
    let (control, ours) = (of(&rows, Strategy::None), of(&rows, Strategy::Lockkeeper));
    assert!(control.admitted > 5, "{control:?}");
    assert_eq!(ours.store, "redis");
    assert_eq!((ours.admitted, ours.turned_away), (5, 95), "{ours:?}");
    // The second one listens for what ends leases, once the first grant is some time ago.
    assert!(matches!(ours.connections, Some(1 | 2)), "{ours:?}");

    // The report shows what the server counted: the data needs no EVALSHA.
    let shown = ours.commands_per_grant.unwrap() * 100.0;
    let evalsha = calls["evalsha"] - before.get("evalsha").copied().unwrap_or(0);
    let evalsha = f64::from(u32::try_from(evalsha).unwrap());
    // Beside it, each of four scripts that the server does not know yet is sent whole, and four commands
    // begin to listen.
    assert!(
        shown >= evalsha - 0.1 && shown <= evalsha + 8.1,
        "{shown} shown, {evalsha} counted"
    );
    assert_cleaned_up(&server);
}

fn every_row_has_its_expected_verdict(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new()).unwrap();
    let rows = rows(&Comparison::new().threads(20), &server.url(), PASSWORD);
    assert_eq!(rows.len(), 60);
    let of = |scenario: Scenario, strategy: Strategy| -> &Row {
        let mut rows = rows.iter().filter(|row| row.scenario == scenario);
        rows.find(|row| row.strategy == strategy).unwrap()
    };
    // What each technique is known for.
    let gather = |strategy| of(Scenario::Gather, strategy);
    let commands = |strategy| gather(strategy).commands_per_grant.unwrap();
    for peer in [Strategy::SetnxSpin, Strategy::Pubsub] {
        // A busy machine ends the bounds of hand-overs sooner.
        assert!(commands(peer) > commands(Strategy::Lockkeeper).max(2.0));
    }
    assert!(gather(Strategy::Optimistic).connections > Some(5));
    assert_eq!(gather(Strategy::SetnxSpin).connections, Some(1));
    assert_eq!(gather(Strategy::Pubsub).connections, Some(2));
    let faults = |scenario, strategy| of(scenario, strategy).faults.join("\n");
    assert!(faults(Scenario::Slow, Strategy::SetnxUnsafe).contains("a third was let in"));
    assert!(!faults(Scenario::Slow, Strategy::SetnxOnce).contains("a third was let in"));
    assert!(faults(Scenario::Slow, Strategy::Pubsub).contains("the late write was let through"));
    assert!(faults(Scenario::Crash, Strategy::SetnxUnsafe).contains("still locked"));
    assert!(faults(Scenario::Limit, Strategy::IncrDecr).contains("only 3 of 5 permits"));
    assert!(faults(Scenario::Catalog, Strategy::ReaderCounter).contains("starved"));
    assert_cleaned_up(&server);
}

fn every_form_of_url_reaches_the_server(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password(PASSWORD).tls()).unwrap();
    let authority = server.certificates().unwrap().authority.clone();
    let (addr, tls, authority) = (
        server.addr(),
        server.tls_url().unwrap(),
        authority.display(),
    );
    let urls = [
        format!("{}/3", server.url()),
        format!("redis://{addr}?db=3&user=default&password={PASSWORD}"),
        format!("unix:{}?password={PASSWORD}", server.socket().display()),
        format!("{tls}?ca_file={authority}"),
    ];
    let only = gather()
        .strategies([Strategy::Lockkeeper, Strategy::Optimistic])
        .threads(10);
    for url in urls {
        let rows = rows(&only, &url, PASSWORD);
        assert_eq!(rows.len(), 2);
        for row in rows {
            assert_eq!(row.admitted, 5, "{row:?}");
        }
        assert_cleaned_up(&server);
    }
}

fn passwords_are_not_shown(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("another one")).unwrap();
    let addr = server.addr();
    for (url, is_valid) in [
        (format!("redis://:{PASSWORD}@{addr}"), true),
        (format!("redis://{addr}?password={PASSWORD}"), true),
        (format!("redis://:{PASSWORD}@{addr}/x"), false),
        (format!("redis://:{PASSWORD}@{addr}?tlt=5s"), false),
        (format!("redis://:{PASSWORD}@[::1/"), false),
    ] {
        let error = run(&Comparison::new(), &url, PASSWORD).unwrap_err();
        assert_eq!(matches!(error, Error::Failed(_)), is_valid, "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
}
