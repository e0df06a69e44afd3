//! Real servers are started, stopped, killed, and end with their owner.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use common::{TIMEOUT, alive};
use lockkeeper_testkit::{
    Fault, Proxy, RedisCluster, RedisKind, RedisOptions, RedisServer, Reply, SentinelSet, suite,
    until,
};

const CASES: &[suite::Case<RedisKind>] = &[
    ("version", version),
    ("all_transports", all_transports),
    (
        "restart_is_empty_on_the_same_port",
        restart_is_empty_on_the_same_port,
    ),
    (
        "stopped_server_does_not_reply",
        stopped_server_does_not_reply,
    ),
    ("replica_follows_primary", replica_follows_primary),
    ("call_counts", call_counts),
    ("failed_start_shows_the_log", failed_start_shows_the_log),
    ("proxy_in_front", proxy_in_front),
    (
        "sentinels_replace_a_killed_primary",
        sentinels_replace_a_killed_primary,
    ),
    (
        "cluster_replaces_a_killed_primary",
        cluster_replaces_a_killed_primary,
    ),
    ("cluster_moves_a_slot", cluster_moves_a_slot),
];

fn main() -> ExitCode {
    let mut trials = suite::trials(CASES.iter().copied());
    trials.extend(RedisKind::ALL.map(|kind| {
        let case = ("clock_is_set", clock_is_set as fn(RedisKind));
        suite::trial_unless(kind, RedisKind::clock_ignored, case)
    }));
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

fn clock_is_set(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new().settable_clock());
    let time = || {
        let time = server.command(&["TIME"]).unwrap();
        let seconds = time.items().first().and_then(Reply::text).unwrap();
        seconds.parse::<u64>().unwrap()
    };
    let expires = || server.command(&["SET", "key", "value", "PX", "60000"]);
    let is_there = || server.command(&["EXISTS", "key"]).unwrap() == Reply::Int(1);
    let host = time();
    expires().unwrap();
    server.set_clock(1_000_000).unwrap();
    assert!(time() >= host + 1000);
    assert!(!is_there(), "its minute is over");
    server.set_clock(-1_000_000).unwrap();
    expires().unwrap();
    assert!(time() < host, "a test does not take that long");
    server.restart().unwrap();
    assert!(time() < host);
    expires().unwrap();
    server.set_clock(-940_500).unwrap();
    assert!(is_there());
    server.set_clock(0).unwrap();
    assert!(time() >= host && !is_there());
    let pid = server.pid().unwrap();
    let shared = |name| std::path::PathBuf::from(format!("/dev/shm/{name}{pid}"));
    assert!(
        !["faketime_shm_", "sem.faketime_sem_"]
            .map(shared)
            .iter()
            .any(|file| file.exists())
    );
}

fn start(kind: RedisKind, options: &RedisOptions) -> RedisServer {
    RedisServer::start(kind, options).unwrap()
}

fn version(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    assert_eq!(
        server.command(&["PING"]).unwrap(),
        Reply::Status("PONG".to_owned())
    );
    let version = server.version().unwrap();
    println!("{kind}: version {version} at {}", server.url());
    let major = kind.name().rsplit('-').next().unwrap();
    assert!(version.starts_with(&format!("{major}.")), "{version}");
    assert_ne!(server.addr().port(), 6379);
}

fn all_transports(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new().password("secret").tls());
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(b"AUTH secret\r\nPING\r\n").unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n+PONG\r\n");
    assert!(server.url().starts_with("redis://:secret@127.0.0.1:"));
    assert!(
        server
            .tls_url()
            .unwrap()
            .starts_with("rediss://:secret@localhost:")
    );
    assert!(server.socket().exists());
    handshake(&server);
}

/// Checks TLS with openssl if it is installed, since this crate has no TLS client.
fn handshake(server: &RedisServer) {
    let addr = server.tls_addr().unwrap();
    let authority = &server.certificates().unwrap().authority;
    let openssl = Command::new("openssl")
        .args([
            "s_client",
            "-brief",
            "-verify_return_error",
            "-verify_hostname",
            "localhost",
            "-connect",
        ])
        .arg(addr.to_string())
        .arg("-CAfile")
        .arg(authority)
        .stdin(Stdio::null())
        .output();
    if let Ok(said) = openssl {
        let text = String::from_utf8_lossy(&said.stderr);
        assert!(
            said.status.success() && text.contains("Verification: OK"),
            "{text}"
        );
    }
}

fn restart_is_empty_on_the_same_port(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let (url, pid) = (server.url(), server.pid().unwrap());
    server.command(&["SET", "name", "value"]).unwrap();
    server.kill();
    assert!(server.pid().is_none() && !alive(pid));
    assert!(TcpStream::connect(server.addr()).is_err());
    assert!(server.command(&["PING"]).is_err());
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    assert!(server.command(&["GET", "name"]).unwrap().is_nil());
    // A running server restarts, too.
    server.restart().unwrap();
    assert_ne!(server.pid().unwrap(), pid);

    let keeps = start(
        kind,
        &RedisOptions::new()
            .config("appendonly", ["yes"])
            .config("appendfsync", ["always"]),
    );
    keeps.command(&["SET", "name", "value"]).unwrap();
    keeps.restart().unwrap();
    assert_eq!(
        keeps.command(&["GET", "name"]).unwrap().text().as_deref(),
        Some("value")
    );
}

fn stopped_server_does_not_reply(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let mut client = server.client().unwrap();
    server.stop().unwrap();
    client
        .set_reply_timeout(Duration::from_millis(100))
        .unwrap();
    client
        .command(&["PING"])
        .expect_err("a stopped server does not reply");
    server.cont().unwrap();
    assert_eq!(
        server.command(&["PING"]).unwrap().text().as_deref(),
        Some("PONG")
    );
    // A stopped server ends, too.
    let pid = server.pid().unwrap();
    server.stop().unwrap();
    drop(server);
    assert!(!alive(pid));
}

fn replica_follows_primary(kind: RedisKind) {
    let primary = start(kind, &RedisOptions::new().password("secret"));
    let replica = start(kind, &RedisOptions::new().replica_of(&primary));
    replica.wait_for_sync().unwrap();
    let mut client = primary.client().unwrap();
    client.command(&["SET", "name", "value"]).unwrap();
    assert_eq!(
        client.command(&["WAIT", "1", "5000"]).unwrap().int(),
        Some(1)
    );
    assert_eq!(
        replica.command(&["GET", "name"]).unwrap().text().as_deref(),
        Some("value")
    );
    let refused = replica
        .command(&["SET", "name", "other"])
        .unwrap_err()
        .to_string();
    assert!(refused.starts_with("READONLY"), "{refused}");
}

fn call_counts(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    for _ in 0..3 {
        server.command(&["GET", "name"]).unwrap();
    }
    assert_eq!(server.calls().unwrap().get("get"), Some(&3));
    server.command(&["DEBUG", "SLEEP", "0"]).unwrap();
    // The server notices closed connections after a while.
    until("only this connection is open", || {
        server
            .info("clients")
            .unwrap()
            .get("connected_clients")
            .map(String::as_str)
            == Some("1")
    });
}

fn failed_start_shows_the_log(kind: RedisKind) {
    let error = RedisServer::start(kind, &RedisOptions::new().config("no-such-setting", ["1"]))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("no-such-setting") && text.contains(kind.name()),
        "{text}"
    );
}

fn proxy_in_front(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let proxy = Proxy::new(server.addr()).unwrap();
    proxy.once("SET", Fault::DropReplies);
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.write_all(b"SET name value\r\n").unwrap();
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.dropped_replies == 1));
    stream.write_all(b"GET name\r\n").unwrap();
    let mut answer = [0; 11];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$5\r\nvalue\r\n");
}

fn sentinels_replace_a_killed_primary(kind: RedisKind) {
    let set = SentinelSet::start(kind, 2, 3, Duration::from_millis(500)).unwrap();
    let url = set.url();
    for sentinel in [0, 1, 2] {
        let addr = set.sentinel(sentinel).addr().to_string();
        assert!(url.contains(&addr), "{url}");
    }
    let mut client = set.server(0).client().unwrap();
    client.command(&["SET", "name", "value"]).unwrap();
    // Both replicas have it.
    client.command(&["WAIT", "2", "0"]).unwrap();
    set.server(0).kill();
    let next = set.wait_for_fail_over(0).unwrap();
    let role = set.server(next).command(&["ROLE"]).unwrap();
    let role = role.items().first().and_then(Reply::text);
    assert_eq!(role.as_deref(), Some("master"));
    set.server(0).restart().unwrap();
    set.wait_until_healthy().unwrap();
    let value = set.server(0).command(&["GET", "name"]).unwrap();
    assert_eq!(value.text().as_deref(), Some("value"));
}

fn cluster_replaces_a_killed_primary(kind: RedisKind) {
    let cluster = RedisCluster::start(kind, 1, Duration::from_millis(500)).unwrap();
    let (_, owner) = cluster.owner("name", None).unwrap();
    let primary = cluster.server(owner);
    let mut client = primary.client().unwrap();
    client.command(&["SET", "name", "value"]).unwrap();
    assert_eq!(
        client.command(&["WAIT", "1", "10000"]).unwrap().int(),
        Some(1)
    );
    primary.kill();
    let next = cluster.wait_for_fail_over("name", owner).unwrap();
    assert_eq!(next, owner + RedisCluster::PRIMARIES);
    let value = cluster.server(next).command(&["GET", "name"]).unwrap();
    assert_eq!(value.text().as_deref(), Some("value"));
    primary.restart().unwrap();
    cluster.wait_until_healthy().unwrap();
}

fn cluster_moves_a_slot(kind: RedisKind) {
    let cluster = RedisCluster::start(kind, 0, TIMEOUT).unwrap();
    let (slot, owner) = cluster.owner("name", None).unwrap();
    let next = (owner + 1) % RedisCluster::PRIMARIES;
    cluster
        .server(owner)
        .command(&["SET", "name", "value"])
        .unwrap();
    cluster.begin_move(slot, owner, next).unwrap();
    let value = cluster.server(owner).command(&["GET", "name"]).unwrap();
    assert_eq!(value.text().as_deref(), Some("value"));
    cluster.move_key("name", owner, next).unwrap();
    let asks = cluster.server(owner).command(&["GET", "name"]).unwrap_err();
    assert!(asks.to_string().starts_with("ASK "), "{asks}");
    cluster.end_move(slot, owner, next).unwrap();
    let value = cluster.server(next).command(&["GET", "name"]).unwrap();
    assert_eq!(value.text().as_deref(), Some("value"));
    assert_eq!(cluster.owner("name", None).unwrap(), (slot, next));
}
