//! The cases, each for every kind of server.

use lockkeeper_compare::{Comparison, Error, Scenario, Strategy};
use lockkeeper_testkit::suite::Case;
use lockkeeper_testkit::{
    ConsulServer, EtcdServer, MySqlServer, PostgresServer, RedisServer, StoreKind, TestServer,
    ZooKeeperServer, cases,
};

use crate::known_for;
use crate::rig::{APP, PASSWORD, as_server, assert_cleaned_up, gather, of, rows, run, start};

pub(crate) const CASES: &[Case<StoreKind>] = cases![
    every_row_has_its_expected_verdict,
    every_form_of_url_reaches_the_server,
    passwords_are_not_shown,
];

fn every_row_has_its_expected_verdict(kind: StoreKind) {
    let server = start(kind, false);
    let rows = rows(&Comparison::new().threads(20), &server.url());
    known_for::assert_known(kind, &rows);
    if let Some(server) = as_server(&*server) {
        known_for::assert_counted(server);
    }
    assert_cleaned_up(&*server);
}

/// Returns the forms of the URL of a server with TLS.
fn forms_of_url(server: &dyn TestServer) -> Vec<String> {
    let socket = server.socket_url().unwrap_or_default();
    let login = |user, database| format!("user={user}&password={PASSWORD}&db={database}");
    let (url, addr) = (server.url(), server.single_addr().unwrap());
    let certificates = server.processes()[0].certificates().unwrap();
    let authority = certificates.authority.display();
    if let Some(server) = as_server::<RedisServer>(server) {
        return vec![
            format!("{}/3", server.url()),
            format!("redis://{addr}?db=3&user=default&password={PASSWORD}"),
            format!("{socket}password={PASSWORD}"),
            format!("{}?ca_file={authority}", server.tls_url().unwrap()),
        ];
    }
    if let Some(server) = as_server::<MySqlServer>(server) {
        let login = login(MySqlServer::USER, MySqlServer::DATABASE);
        return vec![
            url.replacen("mysql:", "mariadb:", 1),
            format!("mysql://{addr}?{login}"),
            format!("mysql:?socket={}&{login}", server.socket().display()),
            format!("{}?tls=on&ca_file={authority}", server.url()),
            format!("{}?locks=table", server.url()),
        ];
    }
    if let Some(server) = as_server::<PostgresServer>(server) {
        let login = login(PostgresServer::USER, PostgresServer::DATABASE);
        return vec![
            url.replacen("postgres:", "postgresql:", 1),
            format!("postgres:?socket={}&{login}", server.socket().display()),
            format!("{url}tls=on&ca_file={authority}"),
            format!("{url}locks=table"),
        ];
    }
    // The first of the two members is down.
    let forms = |tls: Option<String>, scheme: &str, more: &str| {
        vec![
            format!("{}?ca_file={authority}", tls.unwrap()),
            format!("{scheme}://127.0.0.1:1,{addr}{more}"),
        ]
    };
    if let Some(server) = as_server::<ConsulServer>(server) {
        return forms(server.tls_url(), "consul", "?datacenter=dc1");
    }
    if let Some(server) = as_server::<ZooKeeperServer>(server) {
        server.client().unwrap().create(APP, "").unwrap();
        return forms(server.tls_url(), "zookeeper", APP);
    }
    let server = as_server::<EtcdServer>(server).unwrap();
    forms(server.tls_url(), "etcd", "")
}

fn every_form_of_url_reaches_the_server(kind: StoreKind) {
    let server = start(kind, true);
    // These have connections of their own.
    let only = gather().threads(10).strategies([
        Strategy::Optimistic,
        Strategy::NamedLock,
        Strategy::EtcdctlLock,
        Strategy::ConsulLock,
        Strategy::SequentialNode,
        Strategy::InsertDelete,
        Strategy::SetnxSpin,
        Strategy::Lockkeeper,
    ]);
    for url in forms_of_url(&*server) {
        let rows = rows(&only, &url);
        assert!(rows.len() >= 2, "{rows:#?}");
        for row in &rows {
            assert_eq!(row.admitted, 5, "{row:?}");
        }
        of(&rows, Scenario::Gather, Strategy::Lockkeeper);
        assert_cleaned_up(&*server);
    }
}

fn passwords_are_not_shown(kind: StoreKind) {
    const SECRET: &str = "swordfish-4711";

    let server = start(kind, true);
    let url = server.url();
    let (scheme, _) = url.split_once(':').unwrap();
    let addr = server.single_addr().unwrap();
    let mut refused = vec![
        (format!("{scheme}://me:{SECRET}@{addr}/x?tlt=5s"), false),
        (format!("{scheme}://me:{SECRET}@[::1/"), false),
    ];
    // An etcd without users refuses no password, and ZooKeeper none.
    if !matches!(kind, StoreKind::Etcd(_) | StoreKind::ZooKeeper(_)) {
        // Consul takes neither.
        let is_taken = !matches!(kind, StoreKind::Consul(_));
        refused.push((format!("{scheme}://me:{SECRET}@{addr}"), is_taken));
        let keys = format!("user=me&password={SECRET}");
        refused.push((format!("{scheme}://{addr}?{keys}"), is_taken));
    }
    for (url, is_valid) in refused {
        let error = run(&Comparison::new(), &url, SECRET).unwrap_err();
        assert_eq!(matches!(error, Error::Failed(_)), is_valid, "{error}");
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
    }
    if as_server::<MySqlServer>(&*server).is_some() {
        let without = url.replace(MySqlServer::DATABASE, "");
        let error = run(&Comparison::new(), &without, PASSWORD).unwrap_err();
        assert!(
            matches!(&error, Error::Invalid(text) if text.contains("names no database")),
            "{error}"
        );
    }
}
