//! Errors on opening: each names the cause, and none contains a secret.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;
use lockkeeper_testkit::{Certificates, RedisKind, RedisOptions, RedisServer, cases, until};

use super::Case;
use super::store::{open, start};
use crate::common::{Keepers as _, WAIT_LIMIT, fake_server, lock_by_tls, refused};

pub(super) const CASES: &[Case] = cases![
    wrong_password,
    databases_are_separate,
    opening_at_maxmemory,
    opening_at_maxclients,
    tls_to_plain_port_and_reverse,
    missing_acl_permissions,
];

/// No Redis decides these.
pub(super) const BY_OTHERS: &[Case] = cases![
    server_hangs_after_first_reply,
    other_protocol_on_the_port,
    replies_without_end,
    text_of_server_is_escaped,
    tls_by_system_roots,
];

fn wrong_password(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("right")).unwrap();
    let addr = server.addr();
    for url in [
        format!("redis://{addr}/"),
        format!("redis://:s3cret@{addr}/"),
        format!("redis://unknown:s3cret@{addr}/"),
    ] {
        refused(&url, ErrorKind::PermissionDenied, &["password"]);
    }
    let keeper = open(&server.url(), "");
    assert!(!format!("{keeper:?}").contains("right"));
    drop(keeper);
    server.assert_clean();
    // One server has no password, and one does not know AUTH. Its error repeats the arguments, cut after
    // 128 bytes and with blanks for control characters.
    let without_password = start(kind);
    let options = RedisOptions::new().config("rename-command", ["AUTH", ""]);
    let echoing = RedisServer::start(kind, &options).unwrap();
    let long = "s3cret".repeat(40);
    for server in [&without_password, &echoing] {
        for password in ["s3cret%0A", &long, "s3cret"] {
            for user in ["", "unknown"] {
                let url = format!("redis://{user}:{password}@{}/", server.addr());
                refused(&url, ErrorKind::PermissionDenied, &["AUTH"]);
            }
        }
    }
}

fn databases_are_separate(kind: RedisKind) {
    let server = start(kind);
    let [zero, one] = ["0", "1"].map(|db| open(&server.url(), &format!("db={db}")));
    let held = zero.lock("a").unwrap();
    drop(one.try_lock("a").unwrap().expect("another database"));
    drop((held, zero, one));
    let none = format!("{}/99", server.url());
    refused(&none, ErrorKind::InvalidValue, &["db"]);
    server.assert_clean();
}

fn opening_at_maxmemory(kind: RedisKind) {
    let options = RedisOptions::new()
        .config("maxmemory", ["1"])
        .config("maxmemory-policy", ["noeviction"]);
    let server = RedisServer::start(kind, &options).unwrap();
    refused(&server.url(), ErrorKind::Unavailable, &["maxmemory"]);
    // Other programs may still hold locks there, so the fallback is not used.
    let url = format!("{}/?fallback=memory:", server.url());
    refused(&url, ErrorKind::Unavailable, &["maxmemory"]);
    server.assert_clean();
}

/// Logging in takes several commands, and the server replies to the first one only.
fn opening_at_maxclients(kind: RedisKind) {
    const CLIENTS: usize = 3;
    let options = RedisOptions::new()
        .password("s3cret")
        .config("maxclients", [CLIENTS.to_string()]);
    let server = RedisServer::start(kind, &options).unwrap();
    let plain = server.url();
    let socket = format!("unix:{}", server.socket().display());
    let mut idle = Vec::new();
    until("the connection that saw the server start is closed", || {
        idle.extend(server.client().ok());
        idle.len() == CLIENTS
    });
    for url in [
        format!("{plain}/?"),
        format!("{plain}/1?"),
        format!("{socket}?password=s3cret&"),
        format!("{socket}?password=s3cret&db=1&"),
    ] {
        // Whether the server has closed the connection before the first command is left to chance.
        for _ in 0..5 {
            let url = format!("{url}fallback=memory:");
            refused(&url, ErrorKind::Unavailable, &["maxclients"]);
        }
    }
    drop(idle);
    until("there is room again", || lockkeeper::open(&plain).is_ok());
    server.assert_clean();
}

fn other_protocol_on_the_port(_: RedisKind) {
    for word in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x4a\x00\x00\x00\x0a8.0.36\x00",
    ] {
        let addr = fake_server(b"", word, usize::MAX);
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
    let silent = fake_server(b"", b"", 0);
    let url = format!("redis://:s3cret@{silent}/?connect_timeout=300ms&response_timeout=300ms");
    refused(&url, ErrorKind::Unavailable, &[&silent]);
}

fn text_of_server_is_escaped(_: RedisKind) {
    let reply = "-ODD \u{1b}]0;title\u{7} \u{202e}\u{9b}2J\r\n";
    let addr = fake_server(b"", reply.as_bytes(), usize::MAX);
    let error = lockkeeper::open(&format!("redis://{addr}/")).unwrap_err();
    assert!(error.message().contains(r"\u{1b}]0;title"), "{error}");
    for shown in [error.to_string(), format!("{error:?}").replace('\n', "")] {
        assert!(!shown.contains(|it: char| it.is_control() || it == '\u{202e}'));
    }
}

/// Endless arrays and strings, and arrays in arrays.
fn replies_without_end(_: RedisKind) {
    const MIB: usize = 1 << 20;
    for (start, part) in [
        ("*1000000000000\r\n", ":1\r\n"),
        ("$1000000000000\r\n", "x"),
        ("+", "x"),
        ("", "*1\r\n"),
    ] {
        let sent = Arc::new(AtomicUsize::new(0));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let counter = Arc::clone(&sent);
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.write_all(start.as_bytes());
                let parts = part.repeat(4096);
                while stream.write_all(parts.as_bytes()).is_ok() {
                    counter.fetch_add(parts.len(), Ordering::SeqCst);
                }
            }
        });
        let opened = lockkeeper::open(&format!("redis://{addr}/"));
        let error = opened.expect_err(start);
        // Whether the time is over first depends on how busy the machine is.
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Incompatible | ErrorKind::Unavailable
            ),
            "{error:?}"
        );
        let sent = sent.load(Ordering::SeqCst);
        // The rest is what the sockets hold.
        assert!(sent < 32 * MIB, "{start:?}: {sent} bytes");
    }
}

/// The server hangs during the login, or after it.
fn server_hangs_after_first_reply(_: RedisKind) {
    let addr = fake_server(b"", b"+OK\r\n", 1);
    for db in ["1", ""] {
        let keys = "connect_timeout=300ms&response_timeout=300ms&fallback=memory:";
        let url = format!("redis://:s3cret@{addr}/{db}?{keys}");
        refused(&url, ErrorKind::Unavailable, &[&addr, "did not answer"]);
    }
}

fn tls_to_plain_port_and_reverse(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().tls()).unwrap();
    let authority = &server.certificates().unwrap().authority;
    lock_by_tls(&server.tls_url().unwrap(), authority);
    let plain_to_tls = format!("redis://{}/", server.tls_addr().unwrap());
    names_scheme(&plain_to_tls, "rediss:");
    let (addr, authority) = (server.addr(), authority.display());
    let tls_to_plain = format!("rediss://{addr}/?ca_file={authority}");
    names_scheme(&tls_to_plain, "redis:");
    server.assert_clean();

    let options = RedisOptions::new()
        .tls()
        .config("tls-auth-clients", ["yes"]);
    let server = RedisServer::start(kind, &options).unwrap();
    let files = server.certificates().unwrap();
    let (url, authority) = (server.tls_url().unwrap(), files.authority.display());
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let own = format!("ca_file={authority}&cert_file={certificate}&key_file={key}");
    drop(open(&url, &own).lock("a").unwrap());
    let anonymous = format!("{url}?ca_file={authority}");
    refused(&anonymous, ErrorKind::PermissionDenied, &["`cert_file`"]);
    let folder = server.folder().join("another");
    fs::create_dir(&folder).unwrap();
    let another = Certificates::make(&folder).unwrap().key;
    let wrong = format!(
        "{anonymous}&cert_file={certificate}&key_file={}",
        another.display()
    );
    refused(&wrong, ErrorKind::InvalidValue, &["`key_file`"]);
}

/// The environment names the file of the roots. All tests of this process share its environment, so a
/// child process opens the URL.
fn tls_by_system_roots(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().tls()).unwrap();
    let url = server.tls_url().unwrap();
    let with_roots = |authority: &Path| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.env(CHILD, &url).env("SSL_CERT_FILE", authority);
        let output = child.env_remove("SSL_CERT_DIR").output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let trusted = with_roots(&server.certificates().unwrap().authority);
    assert_eq!(trusted, "granted\n");
    let folder = tempfile::tempdir().unwrap();
    let another = Certificates::make(folder.path()).unwrap();
    let untrusted = with_roots(&another.authority);
    for word in ["PermissionDenied", "certificate", "ca_file"] {
        assert!(untrusted.contains(word), "no {word:?} in {untrusted}");
    }
    let none = with_roots(&folder.path().join("nowhere.pem"));
    for word in [
        "InvalidValue",
        "certificates",
        "SSL_CERT_FILE",
        "nowhere.pem",
    ] {
        assert!(none.contains(word), "no {word:?} in {none}");
    }
    server.assert_clean();
}

/// Makes this process open the URL in this variable, and print the outcome.
const CHILD: &str = "REDIS_FAULTS_CHILD_URL";

pub(crate) fn child() -> Option<ExitCode> {
    let url = std::env::var(CHILD).ok()?;
    match lockkeeper::open(&url).and_then(|keeper| keeper.lock("a").map(drop)) {
        Ok(()) => println!("granted"),
        Err(error) => println!("{error:?}"),
    }
    Some(ExitCode::SUCCESS)
}

/// Checks that the error names the right scheme. A server that gets TLS on its plain port, or the
/// reverse, may reply, close or hang, by chance.
#[track_caller]
fn names_scheme(url: &str, scheme: &str) {
    let began = Instant::now();
    let error = lockkeeper::open(url).expect_err(url);
    assert!(began.elapsed() < WAIT_LIMIT, "{:?}", began.elapsed());
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Incompatible | ErrorKind::Unavailable
        ),
        "{error:?}"
    );
    let says = error.to_string();
    assert!(says.contains("TLS") && says.contains(scheme), "{says}");
}

/// All permissions that a user needs.
pub(super) const ALLOWED: [&str; 21] = [
    "~lockkeeper:*",
    "&lockkeeper:*",
    "+eval",
    "+evalsha",
    "+set",
    "+mget",
    "+del",
    "+pexpire",
    "+pttl",
    "+time",
    "+zadd",
    "+zrem",
    "+zremrangebyscore",
    "+zrangebyscore",
    "+zrank",
    "+zscore",
    "+pubsub|numsub",
    "+publish",
    "+subscribe",
    "+unsubscribe",
    "+ping",
];

fn missing_acl_permissions(kind: RedisKind) {
    let server = start(kind);
    let user = |name: &str, rules: &[&str]| {
        let mut words = vec!["ACL", "SETUSER", name, "on", ">s3cret", "resetchannels"];
        words.extend(rules);
        server.command(&words).unwrap();
        format!("redis://{name}:s3cret@{}/", server.addr())
    };
    let enough = user("enough", &ALLOWED);
    let [keeper, rival] = [(); 2].map(|()| open(&enough, ""));
    let held = keeper.lock("a").unwrap();
    let waited = rival.try_lock_for("a", Duration::from_secs(2));
    assert!(waited.unwrap().is_none());
    held.renew().unwrap();
    drop((held, keeper, rival));
    for rule in ALLOWED {
        let Some(command) = rule.strip_prefix('+') else {
            continue;
        };
        if command == "unsubscribe" || command == "ping" {
            // These are needed on idle connections and on those with TLS only.
            continue;
        }
        let without = format!("-{command}");
        let mut rules = ALLOWED.to_vec();
        rules.push(&without);
        let url = user(&format!("no-{command}"), &rules);
        let named = command.split('|').next().unwrap();
        refused(&url, ErrorKind::PermissionDenied, &[named]);
    }
    let [_, channels, commands @ ..] = ALLOWED;
    let url = user(
        "no-keys",
        &[&["~other:*", channels], &commands[..]].concat(),
    );
    refused(&url, ErrorKind::PermissionDenied, &["lockkeeper:*"]);
    let url = user("no-channels", &[&["~*"], &commands[..]].concat());
    refused(&url, ErrorKind::PermissionDenied, &["lockkeeper:*"]);
    let url = user(
        "no-epoch-key",
        &[&["~lockkeeper:{default:*", channels], &commands[..]].concat(),
    );
    refused(&url, ErrorKind::PermissionDenied, &["lockkeeper:*"]);
    // A permission is revoked while the keeper is open.
    let url = user("revoked", &ALLOWED);
    let keeper = open(&url, "");
    drop(keeper.lock("a").unwrap());
    user("revoked", &["-set"]);
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("set"), "{error}");
    drop(keeper);
    server.assert_clean();
}
