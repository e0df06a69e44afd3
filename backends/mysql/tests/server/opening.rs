//! Errors on opening: each names the cause, and none contains a secret.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lockkeeper_core::{Config, Drivers, Error, ErrorKind, LockKeeper, Observer};
use lockkeeper_mysql::MySqlDriver;
use lockkeeper_testkit::{Certificates, MySqlKind, MySqlOptions, MySqlServer, cases, until};

use crate::store::{Case, WAIT_LIMIT, open, start, start_own, try_open, with_timeouts};

pub(crate) const CASES: &[Case] = cases![
    settings_are_checked_before_connecting,
    numbers_have_bounds,
    options_of_the_application_come_back,
    missing_rights,
    opening_without_server,
    stopped_server,
    tls,
    password_is_given_to_a_known_server_only,
    server_without_free_connections,
    read_only_server_gives_warning,
    unix_socket,
    tokens_grow_over_quick_restarts,
];

#[track_caller]
fn refused(url: &str, kind: ErrorKind, says: &[&str]) -> Error {
    let began = Instant::now();
    let error = try_open(url).map(drop).expect_err(url);
    // Opening that takes this long waits for something else.
    assert!(began.elapsed() < WAIT_LIMIT, "{:?}", began.elapsed());
    says_why(url, &error, kind, says);
    error
}

#[track_caller]
fn says_why(url: &str, error: &Error, kind: ErrorKind, says: &[&str]) {
    assert_eq!(error.kind(), kind, "{url}: {error:?}");
    let text = format!("{error:?}");
    for word in says {
        assert!(text.contains(word), "{url}: {word:?} is not in {text}");
    }
    assert!(
        !text.contains("s3cret") && !text.contains(MySqlServer::PASSWORD),
        "{text}"
    );
}

/// No server listens on the port, and none is needed.
fn numbers_have_bounds(_: MySqlKind) {
    for (key, value, range) in [
        ("pool_size", "0", "1 to 1000"),
        ("pool_size", "1001", "1 to 1000"),
        ("pool_size", "4000000000", "1 to 1000"),
        ("pool_size", "40000000000", "1 to 1000"),
        ("pool_size", "-1", "1 to 1000"),
        ("connect_timeout", "0s", "1ms to 1day"),
        ("connect_timeout", "2days", "1ms to 1day"),
        ("response_timeout", "1us", "1ms to 1day"),
        ("response_timeout", "25h", "1ms to 1day"),
    ] {
        let url = format!("mysql://127.0.0.1:1/?{key}={value}");
        refused(&url, ErrorKind::InvalidValue, &[key, range, value]);
    }
}

fn settings_are_checked_before_connecting(_: MySqlKind) {
    // No server listens on the port, and none is needed.
    use ErrorKind::{InvalidUrl, InvalidValue, UnknownKey};
    for (rest, kind, word) in [
        ("", InvalidUrl, "host"),
        ("//127.0.0.1:1/?socket=/x", InvalidUrl, "socket"),
        ("//127.0.0.1:1/a?db=b", InvalidValue, "db"),
        (
            "//a:s3cret@127.0.0.1:1/?password=s3cret",
            InvalidValue,
            "password",
        ),
        ("//127.0.0.1:1/?pool_size=0", InvalidValue, "pool_size"),
        (
            "//127.0.0.1:1/?connect_timeout=0s",
            InvalidValue,
            "connect_timeout",
        ),
        (
            "//127.0.0.1:1/?response_timeout=x",
            InvalidValue,
            "response_timeout",
        ),
        ("//127.0.0.1:1/?tls=maybe", InvalidValue, "tls"),
        ("//127.0.0.1:1/?ca_file=/x", InvalidValue, "tls=on"),
        (
            "//127.0.0.1:1/?tls=on&ca_file=/nowhere",
            InvalidValue,
            "ca_file",
        ),
        ("?socket=/x&tls=on", InvalidValue, "socket"),
        ("//127.0.0.1:1/?poolsize=2", UnknownKey, "pool_size"),
        // What other clients call it.
        ("//127.0.0.1:1/?ssl-mode=s3cret", UnknownKey, "`tls=on`"),
        ("//127.0.0.1:1/?useSSL=true", UnknownKey, "`tls=on`"),
        ("//127.0.0.1:1/?ssl-ca=/x", UnknownKey, "`ca_file`"),
    ] {
        for scheme in ["mysql", "mariadb"] {
            refused(&format!("{scheme}:{rest}"), kind, &[word]);
        }
    }
}

fn options_of_the_application_come_back(_: MySqlKind) {
    let opts = mysql::Opts::from_url("mysql://me:s3cret@[::1]:7/shop").unwrap();
    let opts = mysql::OptsBuilder::from_opts(opts).ssl_opts(Some(mysql::SslOpts::default()));
    let opts = lockkeeper_mysql::MySqlOptions::from_opts(opts).opts();
    assert_eq!(opts.get_ip_or_hostname(), "[::1]");
    assert_eq!((opts.get_tcp_port(), opts.get_db_name()), (7, Some("shop")));
    assert_eq!(
        (opts.get_user(), opts.get_pass()),
        (Some("me"), Some("s3cret"))
    );
    assert!(opts.get_ssl_opts().is_some());
}

fn missing_rights(kind: MySqlKind) {
    let server = start_own(kind);
    let at = server.addr();
    let denied = ErrorKind::PermissionDenied;
    for user in ["keeper:s3cret", "keeper", "unknown:s3cret", "root"] {
        let url = format!("mysql://{user}@{at}/");
        refused(&url, denied, &["`user` and `password`"]);
    }
    let url = format!("mysql://keeper:{}@{at}/", MySqlServer::PASSWORD);
    // MySQL tells only users who may see all databases that one does not exist.
    server
        .execute("CREATE USER 'all'@'%' IDENTIFIED BY 's3cret'")
        .unwrap();
    server.execute("GRANT ALL ON *.* TO 'all'@'%'").unwrap();
    let missing = format!(
        "mysql:?socket={}&user=all&password=s3cret&db=nowhere",
        server.socket().display()
    );
    refused(
        &missing,
        ErrorKind::InvalidValue,
        &["no database", "nowhere", "`db`"],
    );
    server.execute("CREATE DATABASE secrets").unwrap();
    refused(&format!("{url}secrets"), denied, &["`db`"]);
    server
        .execute("CREATE USER 'bare'@'%' IDENTIFIED BY 's3cret'")
        .unwrap();
    let key = server.key_setting();
    let bare = try_open(&with_timeouts(&format!("mysql://bare:s3cret@{at}/?{key}"))).unwrap();
    drop(bare.lock("no privilege is needed").unwrap());
    for (user, rule, kind, word) in [
        ("locked", "ACCOUNT LOCK", denied, "locked"),
        ("expired", "PASSWORD EXPIRE", denied, "expired"),
        ("safe", "REQUIRE SSL", denied, "tls=on"),
        (
            "none",
            "WITH MAX_USER_CONNECTIONS 1",
            ErrorKind::Unavailable,
            "limit",
        ),
    ] {
        let create = format!("CREATE USER '{user}'@'%' IDENTIFIED BY 's3cret' {rule}");
        server.execute(&create).unwrap();
        let url = format!("mysql://{user}:s3cret@{at}/?{key}");
        let first = try_open(&url);
        let _held = first.map(|keeper| keeper.lock(user).unwrap());
        refused(&url, kind, &[word]);
    }
}

/// MySQL asks for the password at the first login of a user, and then knows it until the user is changed.
fn password_is_given_to_a_known_server_only(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new().tls()).unwrap();
    let mut root = server.client().unwrap();
    let Some(key) = server.public_key() else {
        assert_eq!(kind, MySqlKind::MariaDb10);
        return;
    };
    root.execute("CREATE USER 'fresh'@'%' IDENTIFIED BY 's3cret'")
        .unwrap();
    let mut forget = || root.execute("FLUSH PRIVILEGES").unwrap();
    let url = with_timeouts(&format!("mysql://fresh:s3cret@{}/", server.addr()));
    let says = ["tls=on", "`server_key_file`", "Unix socket"];
    refused(&url, ErrorKind::PermissionDenied, &says);
    let with_key = |file: &str| format!("{url}&server_key_file={file}");
    let authority = &server.certificates().unwrap().authority;
    for (file, word) in [
        ("/nowhere", "cannot be read"),
        (authority.to_str().unwrap(), "no public key"),
    ] {
        refused(&with_key(file), ErrorKind::InvalidValue, &[word]);
    }
    let key = key.to_str().unwrap();
    drop(try_open(&with_key(key)).unwrap());
    // It knows the password now.
    drop(try_open(&url).unwrap());
    forget();
    refused(&url, ErrorKind::PermissionDenied, &says);
    let tls = format!("{url}&tls=on&ca_file={}", authority.display());
    refused(
        &format!("{tls}&server_key_file={key}"),
        ErrorKind::InvalidValue,
        &["TLS"],
    );
    drop(try_open(&tls).unwrap());
    forget();
    let socket = format!(
        "mysql:?socket={}&user=fresh&password=s3cret",
        server.socket().display()
    );
    drop(try_open(&with_timeouts(&socket)).unwrap());
}

fn opening_without_server(_: MySqlKind) {
    refused(
        "mysql://127.0.0.1:1/",
        ErrorKind::Unavailable,
        &["127.0.0.1:1", "refused"],
    );
    refused(
        "mysql://no-such-host.invalid/",
        ErrorKind::Unavailable,
        &["no-such-host"],
    );
    refused(
        "mysql:?socket=/nowhere.sock",
        ErrorKind::Unavailable,
        &["/nowhere.sock"],
    );
}

fn stopped_server(kind: MySqlKind) {
    let server = start(kind);
    server.stop().unwrap();
    let url = format!("{}?connect_timeout=300ms", server.url());
    refused(&url, ErrorKind::Unavailable, &["says nothing"]);
    server.cont().unwrap();
    drop(open(&server, "").lock("a").unwrap());
}

fn tls(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new().tls()).unwrap();
    let trusted = server
        .certificates()
        .unwrap()
        .authority
        .display()
        .to_string();
    let keeper = open(&server, &format!("tls=on&ca_file={trusted}"));
    drop(keeper.lock("a").unwrap());
    let accepted = server.client().unwrap().status("Ssl_accepts").unwrap();
    assert!(accepted > 0);
    drop(open(&server, "").lock("without").unwrap());
    let refuses = ErrorKind::PermissionDenied;
    refused(
        &format!("{}?tls=on", server.url()),
        refuses,
        &["certificate", "ca_file"],
    );
    // Cancelling a wait shuts down the socket beneath TLS.
    let held = keeper.lock("a").unwrap();
    let other = open(&server, &format!("tls=on&ca_file={trusted}"));
    let none = other.try_lock_for("a", Duration::from_secs(1)).unwrap();
    assert!(none.is_none());
    drop(held);
    drop(other.lock("a").unwrap());

    server
        .execute("CREATE USER 'safe'@'%' IDENTIFIED BY 's3cret' REQUIRE SSL")
        .unwrap();
    let safe = format!("mysql://safe:s3cret@{}/", server.addr());
    refused(&safe, refuses, &[]);
    let safe = with_timeouts(&format!("{safe}?tls=on&ca_file={trusted}"));
    drop(try_open(&safe).unwrap());

    server
        .execute("CREATE USER 'known'@'%' REQUIRE X509")
        .unwrap();
    let known = format!("mysql://known@{}/?tls=on&ca_file={trusted}", server.addr());
    refused(&known, refuses, &[]);
    let files = server.certificates().unwrap();
    let [certificate, key] = [&files.certificate, &files.key].map(|it| it.display().to_string());
    drop(try_open(&format!("{known}&cert_file={certificate}&key_file={key}")).unwrap());
    let folder = server.folder().join("another");
    fs::create_dir(&folder).unwrap();
    let another = Certificates::make(&folder).unwrap().key;
    let another = another.display().to_string();
    for (certificate, key, wrong) in [
        (&certificate, "/x", "`key_file`"),
        (&certificate, &another, "`key_file`"),
        (&key, &key, "`cert_file` has no certificate"),
    ] {
        let url = format!("{known}&cert_file={certificate}&key_file={key}");
        refused(&url, ErrorKind::InvalidValue, &[wrong]);
    }

    let plain = start(kind);
    let url = format!("{}?tls=on&ca_file={trusted}", plain.url());
    refused(&url, ErrorKind::Incompatible, &["TLS", "tls=off"]);
}

fn server_without_free_connections(kind: MySqlKind) {
    let options = MySqlOptions::new().config("max-connections", "10");
    let server = MySqlServer::start(kind, &options).unwrap();
    let conn = || mysql::Conn::new(mysql::Opts::from_url(&server.url()).unwrap());
    let (first, other) = (open(&server, ""), open(&server, ""));
    let busy = other.lock("busy").unwrap();
    let mut all = Vec::new();
    let mut refusal = None;
    // The server may still be closing a connection of its start.
    until("the server has no free connection", || {
        while let Ok(one) = conn() {
            all.push(one);
        }
        refusal = try_open(&server.url()).err();
        refusal.is_some()
    });
    says_why(
        &server.url(),
        &refusal.unwrap(),
        ErrorKind::Unavailable,
        &["max_connections", "pool_size"],
    );
    // A keeper that holds a session locks free names on it; without a further connection it polls.
    let held = ["a", "b"].map(|name| first.lock(name).unwrap());
    // At its end, a wait is short of time for a reply of a busy server.
    let is_busy = || match first.try_lock_for("busy", Duration::from_secs(1)) {
        Ok(granted) => granted.is_none(),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unknown, "{error:?}");
            false
        }
    };
    until("the lock is busy", is_busy);
    drop(all);
    until("the lock is still busy", is_busy);
    drop((held, busy));
    drop(first.lock("busy").unwrap());
}

#[derive(Default)]
struct Warnings(Mutex<Vec<String>>);

impl Observer for Warnings {
    fn warning(&self, store: &str, text: &str) {
        self.0.lock().unwrap().push(format!("{store}: {text}"));
    }
}

fn read_only_server_gives_warning(kind: MySqlKind) {
    let server = start_own(kind);
    let warnings = || -> (LockKeeper, Vec<String>) {
        let observer = Arc::new(Warnings::default());
        let config = Config::from_url(&with_timeouts(&server.url()))
            .unwrap()
            .observer(observer.clone());
        let keeper = Drivers::new().with(MySqlDriver).open(&config).unwrap();
        let warnings = observer.0.lock().unwrap().clone();
        (keeper, warnings)
    };
    assert_eq!(warnings().1, [""; 0]);
    server.execute("SET GLOBAL read_only = 1").unwrap();
    let (keeper, given) = warnings();
    assert!(
        given[0].contains("read-only") && !given[0].contains(MySqlServer::PASSWORD),
        "{given:?}"
    );
    drop(keeper.lock("a").unwrap());
}

fn unix_socket(kind: MySqlKind) {
    let server = start(kind);
    let (user, password) = (MySqlServer::USER, MySqlServer::PASSWORD);
    let socket = server.socket().display().to_string();
    let url = format!("mariadb:?socket={socket}&user={user}&password={password}");
    let url = with_timeouts(&url);
    let keeper = try_open(&url).unwrap();
    let held = keeper.lock("a").unwrap();
    let other = try_open(&url).unwrap();
    let none = other.try_lock_for("a", Duration::from_secs(1)).unwrap();
    assert!(none.is_none());
    drop(held);
    drop(other.lock("a").unwrap());
}

/// The server's own numbers are based on the second of its start, so two starts in one second repeat
/// them.
fn tokens_grow_over_quick_restarts(kind: MySqlKind) {
    let server = start(kind);
    let mut last = None;
    for _again in 0..4 {
        let token = open(&server, "").lock("a").unwrap().token();
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
        server.restart().unwrap();
    }
}
