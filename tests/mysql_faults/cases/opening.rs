//! Errors on opening: each names the cause, and none contains a secret.

use std::time::Duration;

use lockkeeper::ErrorKind;
use lockkeeper_testkit::{MySqlKind, MySqlOptions, MySqlServer};

use super::Case;
use super::store::{assert_clean, open, start, start_own};
use crate::faults::{fake_server, refused};

pub(super) const CASES: &[Case] = &[
    ("wrong_password", wrong_password),
    ("unknown_database", unknown_database),
    ("missing_privileges", missing_privileges),
    ("other_protocol_on_the_port", other_protocol_on_the_port),
    ("tls", tls),
];

/// A password that no error may contain.
const SECRET: &str = "s3cret";

fn wrong_password(kind: MySqlKind) {
    let server = start(kind);
    let (addr, user) = (server.addr(), MySqlServer::USER);
    for who in [
        format!("{user}:{SECRET}@"),
        format!("{user}@"),
        format!("unknown:{SECRET}@"),
        "root@".to_owned(),
    ] {
        let url = format!("mysql://{who}{addr}/");
        refused(&url, ErrorKind::PermissionDenied, &["password"]);
    }
    assert_clean(&server);
}

fn unknown_database(kind: MySqlKind) {
    let server = start_own(kind);
    let (addr, user, password) = (server.addr(), MySqlServer::USER, MySqlServer::PASSWORD);
    server
        .execute(&format!("GRANT ALL ON *.* TO '{user}'@'%'"))
        .unwrap();
    let url = format!("mysql://{user}:{password}@{addr}/nowhere");
    refused(&url, ErrorKind::InvalidValue, &["nowhere", "`db`"]);
    assert_clean(&server);
}

fn missing_privileges(kind: MySqlKind) {
    let server = start_own(kind);
    let addr = server.addr();
    let mut root = server.client().unwrap();
    let mut user = |name: &str, more: &str| {
        let create = format!("CREATE USER '{name}'@'%' IDENTIFIED BY '{SECRET}' {more}");
        root.execute(&create).unwrap();
        format!("mysql://{name}:{SECRET}@{addr}/")
    };
    // Locks need no privilege.
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
    assert_clean(&server);
}

fn other_protocol_on_the_port(_: MySqlKind) {
    for first in [
        b"SSH-2.0-OpenSSH_9.2\r\n".as_slice(),
        b"220 mail.example.org ESMTP\r\n",
        // MySQL 3.23, which hashed passwords in another way.
        b"\x19\x00\x00\x00\x093.23.49\x00\x01\x00\x00\x00abcdefgh\x00\x2c\x00",
    ] {
        let addr = fake_server(first, b"what?\r\n", usize::MAX);
        for tls in ["", "&tls=on"] {
            let url = format!("mysql://me:{SECRET}@{addr}/?connect_timeout=300ms{tls}");
            let error = lockkeeper::open(&url).expect_err("it is no MySQL server");
            let kinds = [ErrorKind::Incompatible, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("MySQL server") && text.contains(&addr),
                "{text}"
            );
            assert!(!format!("{error:?}").contains(SECRET), "{error:?}");
        }
    }
    // Redis and HTTP servers send nothing before the client does.
    let silent = fake_server(b"", b"-ERR unknown command\r\n", usize::MAX);
    let url = format!("mysql://me:{SECRET}@{silent}/?connect_timeout=300ms");
    refused(&url, ErrorKind::Unavailable, &[&silent, "MySQL server"]);
}

fn tls(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new().tls()).unwrap();
    let authority = &server.certificates().unwrap().authority;
    let ca = format!("tls=on&ca_file={}", authority.display());
    let keeper = open(&server.url(), &ca);
    let held = keeper.lock("a").unwrap();
    let mut root = server.client().unwrap();
    assert!(root.status("Ssl_accepts").unwrap() > 0);
    drop((held, keeper));
    // The server offers TLS, and does not require it.
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
    assert_clean(&server);
    assert_clean(&without);
}
