//! What cannot work is told on opening, and why.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;
use lockkeeper_testkit::{Certificates, RedisKind, RedisOptions, RedisServer};

use super::Case;
use super::rig::{open, refused, settled, start};
use crate::rig::{HANG, until};

pub(super) const CASES: &[Case] = &[
    ("wrong_password", wrong_password),
    ("database_of_its_own", database_of_its_own),
    ("no_room_at_opening", no_room),
    ("no_client_more_at_opening", no_client_more),
    ("silent_once_it_has_answered", silent_once_it_has_answered),
    ("nobody_there", nobody_there),
    ("somebody_else_there", somebody_else_there),
    ("tls_to_a_plain_port_and_the_reverse", tls),
    (
        "tls_by_the_roots_of_the_system",
        tls_by_the_roots_of_the_system,
    ),
    ("no_permission", no_permission),
];

fn wrong_password(kind: RedisKind) {
    let server = RedisServer::start(kind, &RedisOptions::new().password("right")).unwrap();
    let addr = server.addr();
    for url in [
        format!("redis://{addr}/"),
        format!("redis://:s3cret@{addr}/"),
        format!("redis://nobody:s3cret@{addr}/"),
    ] {
        refused(&url, ErrorKind::PermissionDenied, &["password"]);
    }
    let keeper = open(&server.url(), "");
    assert!(!format!("{keeper:?}").contains("right"));
    drop(keeper);
    settled(&server);
    // A server that wants no password, and one that does not know the command: its error repeats the
    // arguments, cut after 128 bytes and with blanks for control characters.
    let open_to_all = start(kind);
    let options = RedisOptions::new().config("rename-command", ["AUTH", ""]);
    let echoing = RedisServer::start(kind, &options).unwrap();
    let long = "s3cret".repeat(40);
    for server in [&open_to_all, &echoing] {
        for password in ["s3cret%0A", &long, "s3cret"] {
            for user in ["", "nobody"] {
                let url = format!("redis://{user}:{password}@{}/", server.addr());
                refused(&url, ErrorKind::PermissionDenied, &["AUTH"]);
            }
        }
    }
}

fn database_of_its_own(kind: RedisKind) {
    let server = start(kind);
    let [zero, one] = ["0", "1"].map(|db| open(&server.url(), &format!("db={db}")));
    let held = zero.lock("a").unwrap();
    drop(one.try_lock("a").unwrap().expect("another database"));
    drop((held, zero, one));
    let none = format!("{}/99", server.url());
    refused(&none, ErrorKind::InvalidValue, &["db"]);
    settled(&server);
}

fn no_room(kind: RedisKind) {
    let options = RedisOptions::new()
        .config("maxmemory", ["1"])
        .config("maxmemory-policy", ["noeviction"]);
    let server = RedisServer::start(kind, &options).unwrap();
    refused(&server.url(), ErrorKind::Unavailable, &["maxmemory"]);
    // Others may still hold their locks there.
    let url = format!("{}/?fallback=memory:", server.url());
    refused(&url, ErrorKind::Unavailable, &["maxmemory"]);
    settled(&server);
}

/// Logging in is more than one command, and only the first is answered.
fn no_client_more(kind: RedisKind) {
    const CLIENTS: usize = 3;
    let options = RedisOptions::new()
        .password("s3cret")
        .config("maxclients", [CLIENTS.to_string()]);
    let server = RedisServer::start(kind, &options).unwrap();
    let plain = server.url();
    let socket = format!("unix:{}", server.socket().display());
    let idle: Vec<_> = (0..CLIENTS).map(|_| server.client().unwrap()).collect();
    for url in [
        format!("{plain}/?"),
        format!("{plain}/1?"),
        format!("{socket}?password=s3cret&"),
        format!("{socket}?password=s3cret&db=1&"),
    ] {
        // Whether it has hung up when it is asked is left to chance.
        for _ in 0..5 {
            let url = format!("{url}fallback=memory:");
            refused(&url, ErrorKind::Unavailable, &["maxclients"]);
        }
    }
    drop(idle);
    until("there is room again", || lockkeeper::open(&plain).is_ok());
    settled(&server);
}

fn nobody_there(kind: RedisKind) {
    let server = start(kind);
    let addr = server.addr().to_string();
    server.kill();
    for scheme in ["redis", "rediss"] {
        let url = format!("{scheme}://{addr}/");
        refused(&url, ErrorKind::Unavailable, &[&addr, "running"]);
        let keeper = lockkeeper::open(&format!("{url}?fallback=memory:")).unwrap();
        assert_eq!(keeper.backend(), "memory");
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

/// Something that says `word` to whoever says anything, so often.
fn answering(word: &'static [u8], times: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut buffer = [0; 512];
                let mut said = 0;
                while matches!(stream.read(&mut buffer), Ok(count) if count > 0) {
                    if said < times {
                        let _ = stream.write_all(word);
                        said += 1;
                    }
                }
            });
        }
    });
    address.to_string()
}

fn somebody_else_there(_: RedisKind) {
    for word in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x4a\x00\x00\x00\x0a8.0.36\x00",
    ] {
        let addr = answering(word, usize::MAX);
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
    let silent = answering(b"", 0);
    for scheme in ["redis://", "redis://:s3cret@", "rediss://"] {
        let url = format!("{scheme}{silent}/?connect_timeout=300ms&response_timeout=300ms");
        refused(&url, ErrorKind::Unavailable, &[&silent]);
    }
}

/// While it logs in, and after that.
fn silent_once_it_has_answered(_: RedisKind) {
    let addr = answering(b"+OK\r\n", 1);
    for db in ["1", ""] {
        let keys = "connect_timeout=300ms&response_timeout=300ms&fallback=memory:";
        let url = format!("redis://:s3cret@{addr}/{db}?{keys}");
        refused(&url, ErrorKind::Unavailable, &[&addr, "did not answer"]);
    }
}

fn tls(kind: RedisKind) {
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

/// They are where the environment says, and this process's own is for all tests: so it takes another
/// process.
fn tls_by_the_roots_of_the_system(kind: RedisKind) {
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
    settled(&server);
}

/// Where it is set, this process only opens that URL and says what came of it.
const CHILD: &str = "LOCKKEEPER_TEST_OPENS";

pub(super) fn child() -> Option<ExitCode> {
    let url = std::env::var(CHILD).ok()?;
    match lockkeeper::open(&url).and_then(|keeper| keeper.lock("a").map(drop)) {
        Ok(()) => println!("granted"),
        Err(error) => println!("{:?}: {error}", error.kind()),
    }
    Some(ExitCode::SUCCESS)
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

/// What a user must be allowed, and no more.
const ALLOWED: [&str; 20] = [
    "~lockkeeper:*",
    "&lockkeeper:*",
    "+eval",
    "+evalsha",
    "+set",
    "+get",
    "+del",
    "+pexpire",
    "+pttl",
    "+time",
    "+lpos",
    "+lpush",
    "+rpush",
    "+lpop",
    "+lrem",
    "+pubsub|numsub",
    "+publish",
    "+subscribe",
    "+unsubscribe",
    "+ping",
];

fn no_permission(kind: RedisKind) {
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
    let waited = rival.try_lock_for("a", Duration::from_millis(50));
    assert!(waited.unwrap().is_none());
    held.renew().unwrap();
    drop((held, keeper, rival));
    for rule in ALLOWED {
        let Some(command) = rule.strip_prefix('+') else {
            continue;
        };
        if command == "unsubscribe" || command == "ping" {
            // For a connection that is idle for long, and for one with TLS.
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
    // Taken away while the keeper lives.
    let url = user("for-a-while", &ALLOWED);
    let keeper = open(&url, "");
    drop(keeper.lock("a").unwrap());
    user("for-a-while", &["-set"]);
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.to_string().contains("set"), "{error}");
    drop(keeper);
    settled(&server);
}
