//! Each server is really started, killed, stopped and outlived.

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
use std::thread;
use std::time::Duration;

use common::{PATIENCE, alive, until};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer, Reply};

type Case = (&'static str, fn(RedisKind));

const CASES: &[Case] = &[
    ("says_its_version", says_its_version),
    ("answers_on_all_its_doors", answers_on_all_its_doors),
    (
        "comes_back_empty_on_the_same_port",
        comes_back_empty_on_the_same_port,
    ),
    ("is_silent_while_stopped", is_silent_while_stopped),
    ("follows_a_primary", follows_a_primary),
    ("counts_calls", counts_calls),
    ("ends_at_drop_and_in_a_panic", ends_at_drop_and_in_a_panic),
    ("dies_with_its_owner", dies_with_its_owner),
    ("tells_why_it_does_not_start", tells_why_it_does_not_start),
    ("speaks_through_the_proxy", speaks_through_the_proxy),
];

fn main() -> ExitCode {
    if let Some(name) = common::child() {
        let kind = RedisKind::ALL.into_iter().find(|kind| kind.name() == name);
        let server = start(kind.unwrap(), &RedisOptions::new());
        return common::be_the_child(server.pid().unwrap(), server.folder());
    }
    let trials = RedisKind::ALL.iter().flat_map(|&kind| {
        CASES.iter().map(move |&(name, case)| {
            Trial::ignorable_test(format!("{kind}::{name}"), move || match kind.ignored() {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    case(kind);
                    Ok::<_, Failed>(Completion::Completed)
                }
            })
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn start(kind: RedisKind, options: &RedisOptions) -> RedisServer {
    RedisServer::start(kind, options).unwrap()
}

fn says_its_version(kind: RedisKind) {
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

fn answers_on_all_its_doors(kind: RedisKind) {
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

/// By openssl where there is one, as the kit itself speaks no TLS.
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

fn comes_back_empty_on_the_same_port(kind: RedisKind) {
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
    // Also out of the run.
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

fn is_silent_while_stopped(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let mut client = server.client().unwrap();
    server.stop().unwrap();
    client.patience(Duration::from_millis(100)).unwrap();
    client
        .command(&["PING"])
        .expect_err("a stopped server does not answer");
    server.cont().unwrap();
    assert_eq!(
        server.command(&["PING"]).unwrap().text().as_deref(),
        Some("PONG")
    );
    // Stopped at its end: it ends none the less.
    let pid = server.pid().unwrap();
    server.stop().unwrap();
    drop(server);
    assert!(!alive(pid));
}

fn follows_a_primary(kind: RedisKind) {
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

fn counts_calls(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    for _ in 0..3 {
        server.command(&["GET", "name"]).unwrap();
    }
    assert_eq!(server.calls().unwrap().get("get"), Some(&3));
    server.command(&["DEBUG", "SLEEP", "0"]).unwrap();
    // The server comes to know only by and by that the connections before are closed.
    until("only the one that asks is left", || {
        server
            .info("clients")
            .unwrap()
            .get("connected_clients")
            .map(String::as_str)
            == Some("1")
    });
}

fn ends_at_drop_and_in_a_panic(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let (pid, folder) = (server.pid().unwrap(), server.folder().to_owned());
    drop(server);
    assert!(!alive(pid) && !folder.exists());

    let (tell, told) = std::sync::mpsc::channel();
    let panicked = thread::spawn(move || {
        let server = start(kind, &RedisOptions::new());
        tell.send((server.pid().unwrap(), server.folder().to_owned()))
            .unwrap();
        panic!("as a test does");
    });
    panicked.join().unwrap_err();
    let (pid, folder) = told.recv().unwrap();
    assert!(!alive(pid) && !folder.exists());
}

fn dies_with_its_owner(kind: RedisKind) {
    common::dies_with_its_owner(kind.name());
}

fn tells_why_it_does_not_start(kind: RedisKind) {
    let error = RedisServer::start(kind, &RedisOptions::new().config("no-such-setting", ["1"]))
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("no-such-setting") && text.contains(kind.name()),
        "{text}"
    );
}

fn speaks_through_the_proxy(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let proxy = Proxy::new(server.addr()).unwrap();
    proxy.once("SET", Fault::DropReplies);
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.write_all(b"SET name value\r\n").unwrap();
    assert!(proxy.wait_for(PATIENCE, |counts| counts.dropped_replies == 1));
    stream.write_all(b"GET name\r\n").unwrap();
    let mut answer = [0; 11];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"$5\r\nvalue\r\n");
}
