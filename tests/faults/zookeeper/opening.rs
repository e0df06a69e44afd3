//! Users, paths, certificates and other servers.

use std::time::Duration;

use lockkeeper::admin::{Finding, Severity};
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, LockKeeper, Released};
use lockkeeper_testkit::{
    Fault, Proxy, RedisKind, RedisOptions, RedisServer, ZooKeeperEnsemble, ZooKeeperKind,
    ZooKeeperOptions, ZooKeeperServer, cases, until,
};

use super::Case;
use crate::common::{WAIT_LIMIT, fake_server, lock_by_tls, opened, refused, share};

pub(super) const CASES: &[Case] = cases![
    users_are_separate,
    path_has_to_exist,
    certificates,
    other_servers_are_refused,
    members_are_tried_in_turn,
    member_that_only_reads_is_left,
    servers_of_two_ensembles_are_found,
];

fn start(kind: ZooKeeperKind) -> ZooKeeperServer {
    ZooKeeperServer::start(kind, &ZooKeeperOptions::new()).unwrap()
}

fn found(keeper: &LockKeeper) -> Vec<Finding> {
    let admin = keeper.admin().unwrap();
    admin.examine(SystemClock.now() + WAIT_LIMIT).unwrap()
}

fn severity(found: &[Finding], topic: &str) -> Severity {
    let finding = found.iter().find(|it| it.topic == topic);
    finding.unwrap_or_else(|| panic!("{found:?}")).severity
}

fn users_are_separate(kind: ZooKeeperKind) {
    let server = start(kind);
    let url = |login: &str| format!("zookeeper://{login}{}/", server.addr());
    let keeper = opened(&url("me:open-sesame@"));
    drop(keeper.lock("a").unwrap());
    assert_eq!(severity(&found(&keeper), "rights"), Severity::Fine);
    let denied = ErrorKind::PermissionDenied;
    refused(&url(""), denied, &["ACL"]);
    refused(&url("me:s3cret@"), denied, &["password"]);
    let invalid = ErrorKind::InvalidValue;
    refused(&url("me@"), invalid, &["`password`"]);
    refused(&url("me%3Ayou:s3cret@"), invalid, &["colon"]);
    let proxy = Proxy::new(server.addr()).unwrap();
    proxy.once("digest", Fault::CutReplyAfter(0));
    let cut = format!("zookeeper://me:open-sesame@{}/", proxy.addr());
    refused(&cut, ErrorKind::Unavailable, &["reached"]);
    // Everybody may change the nodes of another namespace, which were made without a user.
    server.client().unwrap().create("/open", "").unwrap();
    let anonymous = opened(&format!("{}open", url("")));
    assert_eq!(severity(&found(&anonymous), "rights"), Severity::Warning);
}

fn path_has_to_exist(kind: ZooKeeperKind) {
    let server = start(kind);
    let url = format!("{}/app/locks", server.url());
    refused(&url, ErrorKind::InvalidValue, &["/app/locks", "create"]);
    for path in ["a//b", "a/./b", "a/../b"] {
        let url = format!("{}/{path}", server.url());
        refused(&url, ErrorKind::InvalidValue, &["path"]);
    }
    let mut client = server.client().unwrap();
    client.create("/app", "").unwrap();
    client.create("/app/locks", "").unwrap();
    let [below, root] = [url, server.url()].map(|url| opened(&url));
    let held = below.lock("a").unwrap();
    assert_eq!(root.lock("a").unwrap().release().unwrap(), Released::Done);
    assert_eq!(client.children("/app/locks").unwrap(), ["lockkeeper"]);
    assert_eq!(held.release().unwrap(), Released::Done);
}

fn certificates(kind: ZooKeeperKind) {
    let server = ZooKeeperServer::start(kind, &ZooKeeperOptions::new().tls()).unwrap();
    let url = server.tls_url().unwrap();
    let trusted = &server.certificates().unwrap().authority;
    lock_by_tls(&url, trusted);
    let plain = server.url();
    let with_tls = plain.replace("zookeeper:", "zookeepers:");
    let with_tls = format!("{with_tls}/?ca_file={}", trusted.display());
    refused(&with_tls, ErrorKind::Unavailable, &["closes them"]);
    let without = url.replace("zookeepers:", "zookeeper:");
    let error = lockkeeper::open(&without).unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error:?}");
    let key = format!("{plain}/?tls=on");
    refused(&key, ErrorKind::UnknownKey, &["zookeepers:"]);
}

fn other_servers_are_refused(_: ZooKeeperKind) {
    let garbage = fake_server(b"", b"hello, who are you?\r\n", 1);
    let page = fake_server(
        b"",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        9,
    );
    let endless = fake_server(b"", &[0x7f; 64], 9);
    let short = fake_server(b"", &[0, 0, 0, 2, 1, 1], 1);
    for other in [garbage, page, endless, short] {
        let url = format!("zookeeper://{other}");
        refused(&url, ErrorKind::Incompatible, &["ZooKeeper"]);
    }
    let silent = fake_server(b"", b"", 0);
    let url = format!("zookeeper://{silent}/?response_timeout=300ms&connect_timeout=300ms");
    refused(&url, ErrorKind::Unavailable, &["says nothing"]);
    if RedisKind::Redis7.ignored().is_none() {
        let redis = RedisServer::start(RedisKind::Redis7, &RedisOptions::new());
        let url = redis.unwrap().url().replace("redis:", "zookeeper:");
        let error = lockkeeper::open(&url).unwrap_err();
        assert!(error.to_string().contains("ZooKeeper"), "{error:?}");
    }
}

fn members_are_tried_in_turn(kind: ZooKeeperKind) {
    let server = share::<ZooKeeperServer>(kind);
    // Nothing listens there, and no packet returns from the other address (RFC 5737).
    let hosts = format!("127.0.0.1:1,192.0.2.1,{}", server.addr());
    let keeper = opened(&format!("zookeeper://{hosts}/?connect_timeout=3s&ttl=10s"));
    let held = keeper.try_lock_for("a", Duration::from_secs(20)).unwrap();
    drop(held.expect("it is free"));
}

/// A member that is cut off serves programs that only read, and no locks.
fn member_that_only_reads_is_left(kind: ZooKeeperKind) {
    let options = ZooKeeperOptions::new().java("-Dreadonlymode.enabled=true");
    let ensemble = ZooKeeperEnsemble::start(kind, &options).unwrap();
    let off = (ensemble.leader(&[]).unwrap() + 1) % 3;
    let member = ensemble.members().get(off).unwrap();
    ensemble.cut_off(off);
    until("it only reads", || {
        let state = member.state();
        state.is_ok_and(|state| state.contains("Mode: read-only"))
    });
    refused(&member.url(), ErrorKind::Unavailable, &["only reads"]);
    let keeper = opened(&format!("{}/?ttl=10s&wait=20s", ensemble.url(off)));
    drop(keeper.lock("a").unwrap());
    assert_eq!(severity(&found(&keeper), "members"), Severity::Warning);
}

fn servers_of_two_ensembles_are_found(kind: ZooKeeperKind) {
    let [one, other] = [(); 2].map(|()| share::<ZooKeeperServer>(kind));
    let keeper = opened(&format!("{},{}", one.url(), other.addr()));
    assert_eq!(severity(&found(&keeper), "members"), Severity::Unusable);
    let alone = opened(&one.url());
    let found = found(&alone);
    assert_eq!(severity(&found, "members"), Severity::Warning);
    for topic in ["version", "ttl", "path", "clock"] {
        assert_eq!(severity(&found, topic), Severity::Fine, "{found:?}");
    }
}
