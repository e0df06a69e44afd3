//! What is wrong with sentinels, or with what they say, as opening and `doctor` report it.

use std::net::SocketAddr;

use lockkeeper::admin::Severity;
use lockkeeper::clock::{Clock, SystemClock};
use lockkeeper::{ErrorKind, LockKeeper};
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer, SentinelSet, cases, until};

use super::Case;
use super::opening::ALLOWED;
use super::sentinel::start;
use super::store::{keys_left, open};
use crate::common::{WAIT_LIMIT, fake_server, refused};

pub(super) const CASES: &[Case] = cases![
    sentinel_that_lies,
    sentinel_logins,
    sentinel_users,
    sentinel_with_tls,
    sentinel_urls,
    sentinel_doctor,
];

/// Starts a server that names this address as the primary, whatever it is asked.
fn liar(named: SocketAddr) -> String {
    let (ip, port) = (named.ip().to_string(), named.port().to_string());
    let answer = format!(
        "*2\r\n${}\r\n{ip}\r\n${}\r\n{port}\r\n",
        ip.len(),
        port.len()
    );
    fake_server(
        b"",
        Box::leak(answer.into_bytes().into_boxed_slice()),
        usize::MAX,
    )
}

fn sentinel_that_lies(kind: RedisKind) {
    let set = start(kind);
    let liar = liar(set.proxy(1).addr());
    let url = format!("redis+sentinel://{liar}/mymaster");
    refused(&url, ErrorKind::Unavailable, &["names", "primary", "slave"]);
    let url = set.url().replace("://", &format!("://{liar},"));
    let keeper = open(&url, "");
    let held = keeper.lock("a").unwrap();
    assert_eq!(keys_left(set.server(0)), ["lockkeeper:{default:a}"]);
    drop(held);
}

/// A primary and a sentinel with passwords of their own.
fn sentinel_logins(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("s3cret")).unwrap();
    let options = RedisOptions::new().password("open-sesame").sentinel_of(
        &server,
        server.addr(),
        1,
        WAIT_LIMIT,
    );
    let sentinel = RedisServer::start(kind, &options).unwrap();
    let hosts = sentinel.addr();
    let url = |user: &str| format!("redis+sentinel://{user}{hosts}/mymaster");
    let keys = "?sentinel_password=open-sesame";
    let keeper = lockkeeper::open(&format!("{}{keys}", url(":s3cret@"))).unwrap();
    assert!(!format!("{keeper:?}").contains("s3cret"));
    drop(keeper.lock("a").unwrap());
    let denied = ErrorKind::PermissionDenied;
    for keys in [
        "",
        "?sentinel_password=s3cret",
        "?sentinel_user=x&sentinel_password=s3cret",
    ] {
        let url = format!("{}{keys}", url(":s3cret@"));
        refused(&url, denied, &["sentinel_password"]);
    }
    for user in ["", ":open-sesame@"] {
        refused(&format!("{}{keys}", url(user)), denied, &["`password`"]);
    }
}

/// Users with no more permissions than the docs list.
fn sentinel_users(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new()).unwrap();
    let options = RedisOptions::new().sentinel_of(&server, server.addr(), 1, WAIT_LIMIT);
    let sentinel = RedisServer::start(kind, &options).unwrap();
    let allow = |server: &RedisServer, user: &str, rules: &[&str]| {
        let new = ["ACL", "SETUSER", user, "on", ">s3cret", "resetchannels"];
        server.command(&[&new[..], rules].concat()).unwrap();
    };
    let asks = ["+sentinel", "+subscribe", "+ping"];
    let channels = ["&+switch-master", "&+promoted-slave"];
    allow(&sentinel, "asks", &[&asks[..], &channels].concat());
    allow(&sentinel, "asks-nothing", &["+subscribe", "+ping"]);
    allow(&server, "locks", &ALLOWED);
    allow(&server, "finds", &[&ALLOWED[..], &["+role"]].concat());
    let url = |user: &str, asking: &str| {
        let (host, keys) = (sentinel.addr(), "restart_grace=0s&sentinel_password=s3cret");
        format!("redis+sentinel://{user}:s3cret@{host}/mymaster?{keys}&sentinel_user={asking}")
    };
    let keeper = lockkeeper::open(&url("finds", "asks")).unwrap();
    let held = keeper.lock("a").unwrap();
    until("the keeper listens to the sentinel", || {
        let listeners = ["CLIENT", "LIST", "TYPE", "pubsub"];
        let listeners = sentinel.command(&listeners).unwrap().text();
        listeners.is_some_and(|list| list.contains("user=asks "))
    });
    drop(held);
    let denied = ErrorKind::PermissionDenied;
    refused(&url("locks", "asks"), denied, &["+role"]);
    refused(&url("finds", "asks-nothing"), denied, &["+sentinel"]);
}

fn sentinel_with_tls(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().tls()).unwrap();
    let encrypted = server.tls_addr().unwrap();
    let options = RedisOptions::new()
        .tls()
        .config("tls-replication", ["yes"])
        .sentinel_of(&server, encrypted, 1, WAIT_LIMIT);
    let sentinel = RedisServer::start(kind, &options).unwrap();
    // Each has an authority of its own.
    let [both, folder] = [
        sentinel.folder().join("both.pem"),
        server.folder().to_owned(),
    ];
    let authorities = [&sentinel, &server].map(|it| it.certificates().unwrap().authority.clone());
    let pems = authorities.map(|file| std::fs::read(file).unwrap());
    std::fs::write(&both, pems.concat()).unwrap();
    let url = format!(
        "rediss+sentinel://{}/mymaster",
        sentinel.tls_addr().unwrap()
    );
    let keeper = open(&url, &format!("ca_file={}", both.display()));
    drop(keeper.lock("a").unwrap());
    let one = folder.join("authority.pem");
    let untrusted = format!("{url}?ca_file={}", one.display());
    refused(&untrusted, ErrorKind::PermissionDenied, &["certificate"]);
}

fn sentinel_urls(kind: RedisKind) {
    let set = SentinelSet::start(kind, 0, 1, WAIT_LIMIT).unwrap();
    let sentinel = set.sentinel(0).addr();
    let named = |name: &str| format!("redis+sentinel://{sentinel}/{name}");
    refused(&named("other"), ErrorKind::Unavailable, &["name"]);
    refused(&named(""), ErrorKind::InvalidUrl, &["mymaster"]);
    refused(&named("mymaster/1"), ErrorKind::InvalidUrl, &["`db`"]);
    let server = format!("redis+sentinel://{}/mymaster", set.server(0).addr());
    refused(&server, ErrorKind::Incompatible, &["no sentinel"]);
    let reverse = format!("redis://{sentinel}/");
    refused(&reverse, ErrorKind::Incompatible, &["redis+sentinel:"]);
    let [zero, one] = ["0", "1"].map(|db| open(&set.url(), &format!("db={db}")));
    let held = zero.lock("a").unwrap();
    drop(one.try_lock("a").unwrap().expect("another database"));
    assert!(zero.location().contains(&format!("{sentinel}/mymaster")));
    drop(held);
}

/// Returns the topics about which `doctor` warns.
fn warnings(keeper: &LockKeeper) -> Vec<&'static str> {
    let soon = SystemClock.now() + WAIT_LIMIT;
    let findings = keeper.admin().unwrap().examine(soon).unwrap();
    let topics = ["sentinels", "primary", "quorum", "min-replicas-to-write"];
    let known = |topic: &str| findings.iter().any(|it| it.topic == topic);
    assert!(topics.into_iter().all(known), "{findings:?}");
    let found = findings.iter().filter(|it| it.severity != Severity::Fine);
    let topics = found.map(|it| it.topic).filter(|it| topics.contains(it));
    topics.collect()
}

fn sentinel_doctor(kind: RedisKind) {
    let set = start(kind);
    let keeper = open(&set.url(), "connect_timeout=5s");
    assert_eq!(warnings(&keeper), ["min-replicas-to-write"]);
    let limit = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    set.server(0).command(&limit).unwrap();
    assert_eq!(warnings(&keeper), Vec::<&str>::new());
    let liar = liar(set.proxy(1).addr());
    let url = format!(
        "{},{liar}/mymaster",
        set.url().trim_end_matches("/mymaster")
    );
    let misled = open(&url, "response_timeout=2s&connect_timeout=2s");
    // It answers a question for the quorum with the address, too.
    until("the other sentinels reply in time", || {
        warnings(&misled) == ["sentinels"]
    });
    set.sentinel(1).kill();
    set.sentinel(2).kill();
    until("the last sentinel knows", || {
        warnings(&keeper) == ["sentinels", "quorum"]
    });
}
