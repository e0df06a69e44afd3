//! What can be wrong with a server is told on opening: what it is, and the way out.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper_core::{Config, Drivers, Error, ErrorKind, LockKeeper};
use lockkeeper_redis::RedisDriver;
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer};

fn open(url: &str) -> Result<LockKeeper, Error> {
    Drivers::new()
        .with(RedisDriver)
        .open(&Config::from_url(url)?)
}

fn start(options: &RedisOptions) -> RedisServer {
    RedisServer::start(RedisKind::Redis7, options).unwrap()
}

/// Far longer than any timeout here: what takes that long waits for something else.
const ABSURD: Duration = Duration::from_secs(10);

#[track_caller]
fn refused(url: &str, kind: ErrorKind, says: &[&str]) {
    let began = Instant::now();
    let error = open(url).expect_err(url);
    assert!(began.elapsed() < ABSURD, "{:?}", began.elapsed());
    assert_eq!(error.kind(), kind, "{error:?}");
    for word in says {
        assert!(error.to_string().contains(word), "no {word:?} in {error:?}");
    }
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
}

/// A server that says `word` to everybody, or nothing.
fn answering(word: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut stream = stream;
                let mut buffer = [0; 512];
                while matches!(stream.read(&mut buffer), Ok(count) if count > 0) {
                    let _ = stream.write_all(word);
                }
            });
        }
    });
    address.to_string()
}

#[test]
fn settings_are_checked_before_anything_is_connected() {
    // Nobody listens there, and nobody is asked.
    for (url, kind, word) in [
        ("redis:///0", ErrorKind::InvalidUrl, "host"),
        ("redis://127.0.0.1:1/x", ErrorKind::InvalidValue, "db"),
        ("redis://127.0.0.1:1/1?db=2", ErrorKind::InvalidValue, "db"),
        (
            "redis://a:s3cret@127.0.0.1:1/?password=s3cret",
            ErrorKind::InvalidValue,
            "password",
        ),
        (
            "redis://a@127.0.0.1:1/",
            ErrorKind::InvalidValue,
            "password",
        ),
        (
            "redis://127.0.0.1:1/?pool_size=0",
            ErrorKind::InvalidValue,
            "pool_size",
        ),
        (
            "redis://127.0.0.1:1/?pool_size=x",
            ErrorKind::InvalidValue,
            "pool_size",
        ),
        (
            "redis://127.0.0.1:1/?connect_timeout=0s",
            ErrorKind::InvalidValue,
            "connect_timeout",
        ),
        (
            "redis://127.0.0.1:1/?response_timeout=x",
            ErrorKind::InvalidValue,
            "response_timeout",
        ),
        (
            "redis://127.0.0.1:1/?ca_file=/x",
            ErrorKind::InvalidValue,
            "rediss",
        ),
        (
            "rediss://127.0.0.1:1/?ca_file=/nowhere",
            ErrorKind::InvalidValue,
            "ca_file",
        ),
        (
            "redis://127.0.0.1:1/?poolsize=2",
            ErrorKind::UnknownKey,
            "pool_size",
        ),
        ("unix:", ErrorKind::InvalidUrl, "socket"),
        ("unix://host/x", ErrorKind::InvalidUrl, "socket"),
    ] {
        refused(url, kind, &[word]);
    }
}

#[test]
fn nobody_there() {
    refused(
        "redis://127.0.0.1:1/",
        ErrorKind::Unavailable,
        &["127.0.0.1:1", "running"],
    );
    refused(
        "unix:/nowhere/redis.sock",
        ErrorKind::Unavailable,
        &["/nowhere"],
    );
    refused(
        "redis://name.invalid/",
        ErrorKind::Unavailable,
        &["name.invalid"],
    );
    refused(
        "rediss://127.0.0.1:1/",
        ErrorKind::Unavailable,
        &["127.0.0.1:1"],
    );
}

#[test]
fn somebody_else_there() {
    let http = answering(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    refused(
        &format!("redis://{http}/"),
        ErrorKind::Incompatible,
        &["Redis"],
    );
    refused(
        &format!("redis://:s3cret@{http}/"),
        ErrorKind::Incompatible,
        &["Redis"],
    );
    refused(
        &format!("rediss://{http}/"),
        ErrorKind::Incompatible,
        &["TLS"],
    );
    let silent = answering(b"");
    for url in [
        format!("redis://{silent}/?connect_timeout=200ms"),
        format!("redis://:s3cret@{silent}/?connect_timeout=200ms"),
        format!("rediss://{silent}/?connect_timeout=200ms"),
    ] {
        refused(&url, ErrorKind::Unavailable, &[&silent]);
    }
}

#[test]
fn tls() {
    let server = start(&RedisOptions::new().tls());
    let ca = server
        .certificates()
        .unwrap()
        .authority
        .display()
        .to_string();
    let tls = server.tls_url().unwrap();
    let keeper = open(&format!("{tls}/?ca_file={ca}")).unwrap();
    drop(keeper.lock("a").unwrap());
    refused(
        &tls,
        ErrorKind::PermissionDenied,
        &["certificate", "ca_file"],
    );
    let plain_to_tls = format!("redis://{}/", server.tls_addr().unwrap());
    refused(&plain_to_tls, ErrorKind::Unavailable, &["rediss:"]);
    let tls_to_plain = format!("rediss://{}/?ca_file={ca}", server.addr());
    refused(&tls_to_plain, ErrorKind::Unavailable, &["redis:"]);
}

#[test]
fn passwords() {
    let server = start(&RedisOptions::new().password("s3cret"));
    let keeper = open(&server.url()).unwrap();
    assert!(!format!("{keeper:?}").contains("s3cret"));
    drop(keeper.lock("a").unwrap());
    let (addr, wrong) = (server.addr(), "not-s3cret");
    refused(
        &format!("redis://{addr}/"),
        ErrorKind::PermissionDenied,
        &["password"],
    );
    refused(
        &format!("redis://:{wrong}@{addr}/"),
        ErrorKind::PermissionDenied,
        &["password"],
    );
    let open_server = start(&RedisOptions::new());
    let url = format!("redis://:s3cret@{}/", open_server.addr());
    refused(&url, ErrorKind::PermissionDenied, &["AUTH"]);
    let echoing = start(&RedisOptions::new().config("rename-command", ["AUTH", ""]));
    let url = format!("redis://:s3cret@{}/", echoing.addr());
    refused(&url, ErrorKind::PermissionDenied, &["***"]);
}

#[test]
fn a_database_of_its_own_and_none_of_that_number() {
    let server = start(&RedisOptions::new());
    let [zero, one] = ["0", "1"].map(|db| open(&format!("{}/{db}", server.url())).unwrap());
    let _held = zero.lock("a").unwrap();
    drop(one.try_lock("a").unwrap().expect("another database"));
    refused(
        &format!("{}/99", server.url()),
        ErrorKind::InvalidValue,
        &["db"],
    );
}

#[test]
fn permissions() {
    let server = start(&RedisOptions::new());
    let allowed = "+eval +evalsha +set +get +del +pexpire +pttl +time +lpos +lpush +rpush +lpop +lrem +publish +subscribe +unsubscribe +ping";
    let user = |name: &str, rules: &str| {
        let mut words = vec!["ACL", "SETUSER", name, "on", ">s3cret", "resetchannels"];
        words.extend(rules.split(' '));
        server.command(&words).unwrap();
        format!("redis://{name}:s3cret@{}/", server.addr())
    };
    let enough = user("enough", &format!("~lockkeeper:* &lockkeeper:* {allowed}"));
    let keeper = open(&enough).unwrap();
    let held = keeper.lock("a").unwrap();
    let other = open(&enough).unwrap();
    assert!(
        other
            .try_lock_for("a", Duration::from_millis(50))
            .unwrap()
            .is_none()
    );
    drop(held);
    for command in [
        "eval",
        "evalsha",
        "SET",
        "TIME",
        "PUBLISH",
        "subscribe",
        "LPOS",
    ] {
        let rules = format!("~lockkeeper:* &lockkeeper:* {allowed} -{command}");
        let url = user(&format!("no-{command}"), &rules);
        refused(&url, ErrorKind::PermissionDenied, &[command]);
    }
    let url = user("no-keys", &format!("~other:* &lockkeeper:* {allowed}"));
    refused(&url, ErrorKind::PermissionDenied, &["lockkeeper:*"]);
    let url = user("no-channels", &format!("~lockkeeper:* {allowed}"));
    refused(&url, ErrorKind::PermissionDenied, &["lockkeeper:*"]);
}

#[test]
fn replicas_and_clusters() {
    let primary = start(&RedisOptions::new());
    let replica = start(&RedisOptions::new().replica_of(&primary));
    replica.wait_for_sync().unwrap();
    refused(
        &replica.url(),
        ErrorKind::PermissionDenied,
        &["read-only replica"],
    );

    let keeper = open(&format!("{}/?replicas=1", primary.url())).unwrap();
    // Its link is up up to a second before it is sent anything.
    let began = Instant::now();
    while let Err(error) = keeper.lock("a").map(drop) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(began.elapsed() < ABSURD, "{error:?}");
    }
    let keeper = open(&format!(
        "{}/?replicas=2&response_timeout=200ms",
        primary.url()
    ))
    .unwrap();
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("replicas"), "{error}");
    let other = open(&primary.url()).unwrap();
    drop(other.try_lock("a").unwrap().expect("given back"));

    let cluster = start(&RedisOptions::new().config("cluster-enabled", ["yes"]));
    refused(&cluster.url(), ErrorKind::Unavailable, &["cluster"]);
    let slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
    cluster.command(&slots).unwrap();
    let began = Instant::now();
    // One node with all slots is as good as a single server, once it has found that out.
    let keeper = loop {
        match open(&cluster.url()) {
            Ok(keeper) => break keeper,
            Err(error) => assert!(began.elapsed() < ABSURD, "{error:?}"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    drop(keeper.lock("a").unwrap());
}

#[test]
fn no_room() {
    let server = start(
        &RedisOptions::new()
            .config("maxmemory", ["1"])
            .config("maxmemory-policy", ["noeviction"]),
    );
    refused(&server.url(), ErrorKind::Unavailable, &["maxmemory"]);
}
