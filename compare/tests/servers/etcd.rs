//! On etcd servers that run already.

use lockkeeper_compare::{Comparison, Scenario, Strategy};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{EtcdKind, EtcdOptions, EtcdServer};
use serde_json::json;

use crate::rig::{gather, of, rows};

/// There is none.
const SECRET: &str = "swordfish-4711";

pub(crate) const CASES: &[Case<EtcdKind>] = &[
    (
        "every_row_has_its_expected_verdict",
        every_row_has_its_expected_verdict,
    ),
    (
        "every_form_of_url_reaches_the_server",
        every_form_of_url_reaches_the_server,
    ),
];

/// Asserts that no key is left but those that this library keeps.
#[track_caller]
fn assert_cleaned_up(server: &EtcdServer) {
    let all = server.call(
        "/v3/kv/range",
        &json!({ "key": "AA==", "range_end": "AA==", "count_only": true }),
    );
    let all = all.unwrap().get("count").cloned().unwrap_or_default();
    let ours = server.keys("lockkeeper/").unwrap().len();
    assert_eq!(all.as_str().unwrap_or("0"), ours.to_string());
}

fn every_row_has_its_expected_verdict(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new()).unwrap();
    let rows = rows(&Comparison::new().threads(20), &server.url(), SECRET);
    assert_eq!(rows.len(), 33);
    let of = |scenario: Scenario, strategy: Strategy| {
        let mut rows = rows.iter().filter(|row| row.scenario == scenario);
        rows.find(|row| row.strategy == strategy).unwrap()
    };
    // What each technique is known for.
    let gather = |strategy| of(Scenario::Gather, strategy);
    assert!(gather(Strategy::EtcdctlLock).connections > Some(1));
    assert!(gather(Strategy::EtcdctlLock).commands_per_grant >= Some(3.0));
    assert!(gather(Strategy::Optimistic).commands_per_grant > Some(2.0));
    let faults = of(Scenario::Nested, Strategy::EtcdctlLock)
        .faults
        .join("\n");
    assert!(faults.contains("waited 500ms for itself"), "{faults}");
    assert_cleaned_up(&server);
}

fn every_form_of_url_reaches_the_server(kind: EtcdKind) {
    let server = EtcdServer::start(kind, &EtcdOptions::new().tls()).unwrap();
    let (tls, addr) = (server.tls_url().unwrap(), server.addr());
    let authority = server.certificates().unwrap().authority.clone();
    // The first of the two members is down.
    let urls = [
        format!("{tls}?ca_file={}", authority.display()),
        format!("etcd://127.0.0.1:1,{addr}"),
    ];
    for url in urls {
        let rows = rows(&gather().threads(10), &url, SECRET);
        assert_eq!(of(&rows, Strategy::Lockkeeper).admitted, 5);
        assert_cleaned_up(&server);
    }
}
