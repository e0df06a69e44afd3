//! What cannot work is told on opening, and why.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

use super::store::{open, settled, start};
use crate::rig::HANG;

/// A password that no error may show.
const SECRET: &str = "s3cret";

#[track_caller]
fn refused(url: &str, kind: ErrorKind, says: &[&str]) {
    let began = Instant::now();
    let error = lockkeeper::open(url).expect_err(url);
    assert!(began.elapsed() < HANG, "{:?}", began.elapsed());
    assert_eq!(error.kind(), kind, "{error:?}");
    for word in says {
        assert!(error.to_string().contains(word), "no {word:?} in {error}");
    }
    for shown in [format!("{error:?}"), error.to_string()] {
        for secret in [SECRET, MySqlServer::PASSWORD] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

pub(super) fn wrong_password(kind: MySqlKind) {
    let server = start(kind);
    let (addr, user) = (server.addr(), MySqlServer::USER);
    for who in [
        format!("{user}:{SECRET}@"),
        format!("{user}@"),
        format!("nobody:{SECRET}@"),
        "root@".to_owned(),
    ] {
        let url = format!("mysql://{who}{addr}/");
        refused(&url, ErrorKind::PermissionDenied, &["password"]);
    }
    settled(&server);
}

pub(super) fn unknown_database(kind: MySqlKind) {
    let server = start(kind);
    let (addr, user, password) = (server.addr(), MySqlServer::USER, MySqlServer::PASSWORD);
    server
        .execute(&format!("GRANT ALL ON *.* TO '{user}'@'%'"))
        .unwrap();
    let url = format!("mysql://{user}:{password}@{addr}/nowhere");
    refused(&url, ErrorKind::InvalidValue, &["nowhere", "`db`"]);
    settled(&server);
}

pub(super) fn missing_privileges(kind: MySqlKind) {
    let server = start(kind);
    let addr = server.addr();
    let mut root = server.client().unwrap();
    let mut user = |name: &str, more: &str| {
        let create = format!("CREATE USER '{name}'@'%' IDENTIFIED BY '{SECRET}' {more}");
        root.execute(&create).unwrap();
        format!("mysql://{name}:{SECRET}@{addr}/")
    };
    // Locks need no privilege at all.
    let nothing = user("nothing", "");
    let [keeper, rival] = [(); 2].map(|()| open(&nothing, "wait=20s"));
    let held = keeper.lock("a").unwrap();
    let busy = rival.try_lock_for("a", Duration::from_millis(50));
    assert!(busy.unwrap().is_none());
    held.renew().unwrap();
    drop(held);
    drop(rival.lock("a").unwrap());
    drop((keeper, rival));
    let database = format!("{nothing}{}", MySqlServer::DATABASE);
    refused(&database, ErrorKind::PermissionDenied, &["`db`"]);
    let locked = user("locked", "ACCOUNT LOCK");
    refused(&locked, ErrorKind::PermissionDenied, &["locked"]);
    let expired = user("expired", "PASSWORD EXPIRE");
    refused(&expired, ErrorKind::PermissionDenied, &["expired"]);
    let tls = user("tls", "REQUIRE SSL");
    refused(&tls, ErrorKind::PermissionDenied, &["TLS"]);
    let one = user("one", "WITH MAX_USER_CONNECTIONS 1");
    let keeper = open(&one, "");
    let held = keeper.lock("a").unwrap();
    refused(&one, ErrorKind::Unavailable, &["limit"]);
    drop((held, keeper));
    settled(&server);
}

pub(super) fn nobody_there(kind: MySqlKind) {
    let server = start(kind);
    let addr = server.addr().to_string();
    server.kill();
    for more in ["", "?tls=on"] {
        let url = format!("mysql://me:{SECRET}@{addr}/{more}");
        refused(&url, ErrorKind::Unavailable, &[&addr, "running"]);
        let sign = if more.is_empty() { '?' } else { '&' };
        let keeper = lockkeeper::open(&format!("{url}{sign}fallback=memory:")).unwrap();
        assert_eq!(keeper.backend(), "memory");
    }
    let socket = server.socket().display().to_string();
    refused(
        &format!("mysql:?socket={socket}&user=me"),
        ErrorKind::Unavailable,
        &[&socket],
    );
    // An address that no packet comes back from; some networks say so at once.
    refused(
        "mysql://192.0.2.1:3306/?connect_timeout=300ms",
        ErrorKind::Unavailable,
        &["192.0.2.1"],
    );
    refused(
        "mysql://name.invalid/",
        ErrorKind::Unavailable,
        &["name.invalid"],
    );
}

/// Something that says `first` to whoever comes, and `word` to whoever says anything.
fn answering(first: &'static [u8], word: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = stream.write_all(first);
                let mut buffer = [0; 512];
                while matches!(stream.read(&mut buffer), Ok(count) if count > 0) {
                    let _ = stream.write_all(word);
                }
            });
        }
    });
    address.to_string()
}

pub(super) fn somebody_else_there(_: MySqlKind) {
    for first in [
        b"SSH-2.0-OpenSSH_9.2\r\n".as_slice(),
        b"220 mail.example.org ESMTP\r\n",
        // A server from before passwords were hashed as they are today.
        b"\x19\x00\x00\x00\x093.23.49\x00\x01\x00\x00\x00abcdefgh\x00\x2c\x00",
    ] {
        let addr = answering(first, b"what?\r\n");
        for more in ["", "?tls=on"] {
            let url = format!("mysql://me:{SECRET}@{addr}/{more}");
            let error = lockkeeper::open(&url).expect_err("it is no MySQL server");
            assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Incompatible | ErrorKind::Unavailable
                ),
                "{error:?}"
            );
            refused(&url, error.kind(), &["MySQL server", &addr]);
        }
    }
    // They wait for the client's first word, as Redis and HTTP servers do.
    let silent = answering(b"", b"-ERR unknown command\r\n");
    let url = format!("mysql://me:{SECRET}@{silent}/?connect_timeout=300ms");
    refused(&url, ErrorKind::Unavailable, &[&silent, "MySQL server"]);
}

pub(super) fn tls(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new().tls()).unwrap();
    let authority = &server.certificates().unwrap().authority;
    let ca = format!("tls=on&ca_file={}", authority.display());
    let keeper = open(&server.url(), &ca);
    let held = keeper.lock("a").unwrap();
    let mut root = server.client().unwrap();
    assert!(root.status("Ssl_accepts").unwrap() > 0);
    drop((held, keeper));
    // Plain, where TLS is an offer.
    drop(open(&server.url(), "").lock("a").unwrap());
    let untrusted = format!("{}?tls=on", server.url());
    refused(
        &untrusted,
        ErrorKind::PermissionDenied,
        &["certificate", "ca_file"],
    );
    let without = start(kind);
    let url = format!("{}?{ca}", without.url());
    refused(&url, ErrorKind::Incompatible, &["TLS", "tls=off"]);
    settled(&server);
    settled(&without);
}
