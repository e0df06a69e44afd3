//! What cannot work is told on opening, and why.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Instant;

use lockkeeper::ErrorKind;
use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer};

use super::rig::{HANG, nothing_left, open, settled, start, until};

#[track_caller]
fn refused(url: &str, kind: ErrorKind, says: &[&str]) {
    let began = Instant::now();
    let error = lockkeeper::open(url).expect_err(url);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    assert_eq!(error.kind(), kind, "{error:?}");
    for word in says {
        assert!(error.to_string().contains(word), "no {word:?} in {error:?}");
    }
    assert!(!format!("{error:?}").contains("s3cret"), "{error:?}");
}

pub(crate) fn wrong_password(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("right")).unwrap();
    let addr = server.addr();
    for url in [
        format!("redis://{addr}/"),
        format!("redis://:s3cret@{addr}/"),
        format!("redis://nobody:s3cret@{addr}/"),
    ] {
        refused(&url, ErrorKind::PermissionDenied, &["password"]);
    }
    settled(&server);
}

pub(crate) fn read_only_replica(kind: RedisKind) {
    let primary = start(kind);
    let replica = RedisServer::start(kind, &RedisOptions::new().replica_of(&primary)).unwrap();
    replica.wait_for_sync().unwrap();
    let says = ["read-only replica", "primary"];
    refused(&replica.url(), ErrorKind::PermissionDenied, &says);
    // The primary counts a replica in only when it has heard of it.
    let keeper = open(&primary.url(), "replicas=1");
    until("the replica acknowledges a grant", || {
        keeper.try_lock("a").is_ok_and(|granted| granted.is_some())
    });
    drop(keeper);
    nothing_left(&primary);
}

pub(crate) fn no_room(kind: RedisKind) {
    let options = RedisOptions::new()
        .config("maxmemory", ["1"])
        .config("maxmemory-policy", ["noeviction"]);
    let server = RedisServer::start(kind, &options).unwrap();
    refused(&server.url(), ErrorKind::Unavailable, &["maxmemory"]);
    settled(&server);
}

pub(crate) fn nobody_there(kind: RedisKind) {
    let server = start(kind);
    let addr = server.addr().to_string();
    server.kill();
    for scheme in ["redis", "rediss"] {
        let url = format!("{scheme}://{addr}/");
        refused(&url, ErrorKind::Unavailable, &[&addr, "running"]);
    }
    let socket = server.socket().display().to_string();
    refused(
        &format!("unix:{socket}"),
        ErrorKind::Unavailable,
        &[&socket],
    );
    // An address that no packet comes back from; some networks say so at once.
    refused(
        "redis://192.0.2.1:6379/?connect_timeout=300ms",
        ErrorKind::Unavailable,
        &["192.0.2.1"],
    );
    refused(
        "redis://name.invalid/",
        ErrorKind::Unavailable,
        &["name.invalid"],
    );
}

/// Something that says `word` to whoever says anything.
fn answering(word: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut buffer = [0; 512];
                while matches!(stream.read(&mut buffer), Ok(count) if count > 0) {
                    let _ = stream.write_all(word);
                }
            });
        }
    });
    address.to_string()
}

pub(crate) fn somebody_else_there(_: RedisKind) {
    for word in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x4a\x00\x00\x00\x0a8.0.36\x00",
    ] {
        let addr = answering(word);
        for url in [
            format!("redis://{addr}/"),
            format!("redis://:s3cret@{addr}/"),
        ] {
            refused(&url, ErrorKind::Incompatible, &["Redis", &addr]);
        }
        refused(
            &format!("rediss://{addr}/"),
            ErrorKind::Incompatible,
            &["TLS", &addr],
        );
    }
    let silent = answering(b"");
    for scheme in ["redis://", "redis://:s3cret@", "rediss://"] {
        let url = format!("{scheme}{silent}/?connect_timeout=300ms&response_timeout=300ms");
        refused(&url, ErrorKind::Unavailable, &[&silent]);
    }
}

pub(crate) fn tls(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().tls()).unwrap();
    let authority = &server.certificates().unwrap().authority;
    let ca = format!("ca_file={}", authority.display());
    let url = server.tls_url().unwrap();
    let keeper = open(&url, &ca);
    drop(keeper.lock("a").unwrap());
    drop(keeper);
    let untrusted = ["certificate", "ca_file"];
    refused(&url, ErrorKind::PermissionDenied, &untrusted);
    let plain_to_tls = format!("redis://{}/", server.tls_addr().unwrap());
    told_apart(&plain_to_tls, "rediss:");
    let tls_to_plain = format!("rediss://{}/?{ca}", server.addr());
    told_apart(&tls_to_plain, "redis:");
    settled(&server);
}

/// Whoever speaks the wrong one of TLS and none may be answered, cut off or left without a word, by
/// chance; the way out is told in any case.
#[track_caller]
fn told_apart(url: &str, way_out: &str) {
    let began = Instant::now();
    let error = lockkeeper::open(url).expect_err(url);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Incompatible | ErrorKind::Unavailable
        ),
        "{error:?}"
    );
    let says = error.to_string();
    assert!(says.contains("TLS") && says.contains(way_out), "{says}");
}

pub(crate) fn no_permission(kind: RedisKind) {
    let server = start(kind);
    let user = |name: &str, rules: &[&str]| {
        let mut words = vec!["ACL", "SETUSER", name, "on", ">s3cret", "+@all"];
        words.extend(rules);
        server.command(&words).unwrap();
        format!("redis://{name}:s3cret@{}/", server.addr())
    };
    let ours = ["~lockkeeper:*", "&lockkeeper:*"];
    let url = user("enough", &ours);
    drop(open(&url, "").lock("a").unwrap());
    for command in [
        "eval",
        "set",
        "get",
        "del",
        "pexpire",
        "pttl",
        "time",
        "lpos",
        "lpush",
        "rpush",
        "lpop",
        "lrem",
        "publish",
        "subscribe",
    ] {
        let [keys, channels] = ours;
        let without = format!("-{command}");
        let url = user(&format!("no-{command}"), &[keys, channels, &without]);
        refused(&url, ErrorKind::PermissionDenied, &[command]);
    }
    let url = user("no-keys", &["~other:*", "&*"]);
    refused(&url, ErrorKind::PermissionDenied, &["lockkeeper:*"]);
    let url = user("no-channels", &["~*", "resetchannels"]);
    refused(&url, ErrorKind::PermissionDenied, &["lockkeeper:*"]);
    // Taken away while the keeper lives.
    let url = user("for-a-while", &ours);
    let keeper = open(&url, "");
    drop(keeper.lock("a").unwrap());
    user("for-a-while", &["-set"]);
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("set"), "{error}");
    drop(keeper);
    settled(&server);
}

pub(crate) fn cluster_mode(kind: RedisKind) {
    let options = RedisOptions::new().config("cluster-enabled", ["yes"]);
    let server = RedisServer::start(kind, &options).unwrap();
    refused(&server.url(), ErrorKind::Unavailable, &["cluster"]);
    // One node that has all slots is as good as a single server, once it has found that out.
    server
        .command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
        .unwrap();
    until("it serves", || lockkeeper::open(&server.url()).is_ok());
    let keeper = open(&server.url(), "");
    drop(keeper.lock("a").unwrap());
    // Now the name is another node's.
    let slot = ["CLUSTER", "KEYSLOT", "lockkeeper:{default:a}"];
    let slot = server.command(&slot).unwrap().int().unwrap().to_string();
    let second = RedisServer::start(kind, &options).unwrap();
    let id = second
        .command(&["CLUSTER", "MYID"])
        .unwrap()
        .text()
        .unwrap();
    let port = second.addr().port().to_string();
    server
        .command(&["CLUSTER", "MEET", "127.0.0.1", &port])
        .unwrap();
    until("they know each other", || {
        let nodes = server.command(&["CLUSTER", "NODES"]).unwrap();
        let nodes = nodes.text().unwrap();
        nodes.contains(&id) && !nodes.contains("handshake")
    });
    server
        .command(&["DEL", "lockkeeper:{default:a}:epoch"])
        .unwrap();
    for node in [&server, &second] {
        node.command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id])
            .unwrap();
    }
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    assert!(error.to_string().contains("cluster"), "{error}");
    assert!(error.to_string().contains("MOVED"), "{error}");
}
