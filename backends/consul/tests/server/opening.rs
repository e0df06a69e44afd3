//! What opening and examining find.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use lockkeeper_consul::{ConsulOptions, ConsulStore};
use lockkeeper_core::{Error, ErrorKind, Severity, StoreInfo, SystemClock};
use lockkeeper_register::RegisterStore;
use lockkeeper_testkit::{ConsulCluster, ConsulKind, ConsulServer, Proxy, until};
use serde_json::json;

use super::{LONG, SECOND, call, open, options, start};

const MASTER: &str = "8f246b77-f3e1-ff88-5b48-8ec93abf3e05";

fn refused(options: &ConsulOptions) -> Error {
    let options = options.clone().connect_timeout(LONG).response_timeout(LONG);
    ConsulStore::open(&options, "shop", Arc::new(SystemClock)).unwrap_err()
}

/// Makes a token with these rules.
fn token(server: &ConsulServer, name: &str, rules: &str) -> String {
    let put = |path, body: serde_json::Value| {
        server
            .call("PUT", path, Some(MASTER), &body.to_string())
            .unwrap()
    };
    put("/v1/acl/policy", json!({ "Name": name, "Rules": rules }));
    let made = put("/v1/acl/token", json!({ "Policies": [{ "Name": name }] }));
    made["SecretID"].as_str().unwrap().to_owned()
}

pub(crate) fn tokens_need_rights(kind: ConsulKind) {
    let acl = lockkeeper_testkit::ConsulOptions::new().acl(MASTER);
    let server = ConsulServer::start(kind, &acl).unwrap();
    until("the ACLs are there", || {
        server
            .call("GET", "/v1/acl/tokens", Some(MASTER), "")
            .is_ok()
    });
    let of = |rules: &[&str]| {
        let rules: String = rules
            .iter()
            .map(|it| format!("{it} {{ policy = \"write\" }}\n"))
            .collect();
        let name = format!("policy-{}", rules.len());
        options(&server).acl_token(token(&server, &name, &rules))
    };
    let (keys, session, node) = (
        r#"key_prefix "lockkeeper/""#,
        r#"session "lockkeeper""#,
        r#"node "lockkeeper""#,
    );
    let without = options(&server);
    let unknown = options(&server).acl_token("4a1ba35f-6e5c-4a3b-b4b0-000000000000");
    let cases = [
        (without, "give it policy"),
        (unknown, "check `acl_token`"),
        (of(&[keys]), "session \"lockkeeper\""),
        (of(&[session]), "node \"lockkeeper\""),
        (of(&[session, node]), "key_prefix \"lockkeeper/\""),
    ];
    for (options, advice) in cases {
        let error = refused(&options);
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(advice), "{error}");
        assert!(!error.is_retryable());
    }
    open(&of(&[keys, session, node]));
    // The node is there now.
    let store = open(&of(&[keys, session]));
    let findings = store.examine(call()).unwrap();
    let version = findings.iter().find(|it| it.topic == "version").unwrap();
    assert!(version.advice.contains("agent_prefix"), "{version:?}");
    assert!(findings.iter().all(|it| it.severity < Severity::Unusable));
}

pub(crate) fn what_is_no_store(kind: ConsulKind) {
    let server = start(kind);
    let error = refused(&options(&server).datacenter("nowhere"));
    assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
    assert!(
        error.to_string().contains("correct `datacenter`"),
        "{error}"
    );
    open(&options(&server).datacenter("dc1"));

    // Another server that speaks HTTP.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
    let error = refused(&ConsulOptions::tcp("127.0.0.1", port));
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");

    // A server without a leader.
    let cluster = ConsulCluster::start(kind, &lockkeeper_testkit::ConsulOptions::new()).unwrap();
    let store = open(&options(&cluster.members()[0]));
    cluster.members()[1..].iter().for_each(|it| it.kill());
    until("the leader is gone", || {
        let findings = store.examine(call()).unwrap();
        findings
            .iter()
            .any(|it| it.severity == Severity::Unusable && it.topic == "leader")
    });
    let error = refused(&options(&cluster.members()[0]));
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("leader"), "{error}");

    // Agents of two clusters: the first one fails after the opening.
    let port = cluster.members()[1].addr().port();
    let other = start(kind);
    let port_of_other = other.addr().port();
    let two = ConsulOptions::tcp("127.0.0.1", server.addr().port())
        .agent("127.0.0.1", port_of_other)
        .agent("127.0.0.1", port);
    let store = open(&two);
    server.kill();
    let error = loop {
        let error = store.list(call()).unwrap_err();
        if !error.is_retryable() {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
}

/// All servers behind two agents are replaced while the program runs, and then those behind one of them.
pub(crate) fn replaced_cluster_is_followed(kind: ConsulKind) {
    let servers = [start(kind), start(kind), start(kind)];
    let proxies = [(); 2].map(|()| Proxy::new(servers[0].addr()).unwrap());
    let [port, other] = proxies.each_ref().map(|it| it.addr().port());
    let two = ConsulOptions::tcp("127.0.0.1", port).agent("127.0.0.1", other);
    let store = open(&two.response_timeout(LONG));
    let nowhere = "127.0.0.1:1".parse().unwrap();
    let leads = [
        [nowhere, servers[0].addr()],
        [servers[1].addr(), servers[1].addr()],
        [nowhere, servers[2].addr()],
    ];
    for targets in leads {
        for (proxy, target) in proxies.iter().zip(targets) {
            proxy.lead_to(target);
            proxy.cut();
        }
        until("the agents are followed", || match store.list(call()) {
            Ok(_) => true,
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                false
            }
        });
    }
}

pub(crate) fn examined(kind: ConsulKind) {
    let server = start(kind);
    let findings = open(&options(&server)).examine(call()).unwrap();
    let bad: Vec<_> = findings
        .iter()
        .filter(|it| it.severity != Severity::Fine)
        .collect();
    let [servers] = bad[..] else {
        panic!("{bad:?}");
    };
    assert_eq!(servers.what, "the cluster has 1 server");
    let topics: Vec<_> = findings.iter().map(|it| it.topic).collect();
    assert_eq!(
        topics,
        ["version", "leader", "servers", "rights", "ttl", "clock"]
    );
    assert!(
        findings[0].what.starts_with("Consul 1."),
        "{}",
        findings[0].what
    );
}

pub(crate) fn ttl_of_twenty_seconds(kind: ConsulKind) {
    let usual = lockkeeper_testkit::ConsulOptions::new().min_ttl(10 * SECOND);
    let server = ConsulServer::start(kind, &usual).unwrap();
    let store = open(&options(&server));
    let ttl = store.capabilities().min_ttl();
    assert_eq!(ttl, 20 * SECOND);
    assert_eq!(store.capabilities().least_margin(ttl), 10 * SECOND);
    store.open_session(ttl, call()).unwrap();
    assert_eq!(server.sessions().unwrap()[0]["LockDelay"], 0);
    store.open_session(2 * 86_400 * SECOND, call()).unwrap();
    let error = store.open_session(3 * 86_400 * SECOND, call()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidTtl, "{error}");
}

pub(crate) fn encrypted(kind: ConsulKind) {
    let tls = lockkeeper_testkit::ConsulOptions::new().tls();
    let server = ConsulServer::start(kind, &tls).unwrap();
    let port = server.tls_addr().port();
    let authority = server.certificates().unwrap().authority.clone();
    open(&ConsulOptions::tcp("localhost", port).tls(Some(authority)));
    let error = refused(&ConsulOptions::tcp("localhost", port).tls(None));
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let error = refused(&ConsulOptions::tcp("localhost", port));
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
}
