//! Real servers are started, stopped, killed, and end with their owner.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "that is how a test fails"
)]

mod common;

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::os::unix::process::parent_id;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use common::{TIMEOUT, alive};
use lockkeeper_testkit::{Fault, MySqlKind, MySqlOptions, MySqlServer, Proxy, suite, until};
use mysql::prelude::Queryable as _;
use mysql::{Conn, Opts, OptsBuilder, SslOpts};

const CASES: &[suite::Case<MySqlKind>] = &[
    ("version", version),
    ("logins", logins),
    ("tls", tls),
    ("restart_keeps_the_port", restart_keeps_the_port),
    (
        "stopped_server_does_not_reply",
        stopped_server_does_not_reply,
    ),
    ("settings", settings),
    ("statement_counts", statement_counts),
    (
        "held_locks_and_waiting_sessions",
        held_locks_and_waiting_sessions,
    ),
    ("failed_start_shows_the_log", failed_start_shows_the_log),
    ("proxy_in_front", proxy_in_front),
];

fn main() -> ExitCode {
    let trials = suite::trials(CASES.iter().copied());
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

fn start(kind: MySqlKind, options: &MySqlOptions) -> MySqlServer {
    MySqlServer::start(kind, options).unwrap()
}

fn connect(url: &str) -> mysql::Result<Conn> {
    let options = OptsBuilder::from_opts(Opts::from_url(url).unwrap());
    Conn::new(options.prefer_socket(false))
}

fn version(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new());
    let version = server.version().unwrap();
    println!("{kind}: version {version} at {}", server.url());
    let major = kind.name().rsplit('-').next().unwrap();
    assert!(version.starts_with(&format!("{major}.")), "{version}");
    let said = server.value("SELECT VERSION()").unwrap().unwrap();
    assert_eq!(version, said);
    assert_ne!(server.addr().port(), 3306);
}

fn logins(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new());
    let mut conn = connect(&server.url()).unwrap();
    let database: Option<String> = conn.query_first("SELECT DATABASE()").unwrap();
    assert_eq!(database.as_deref(), Some(MySqlServer::DATABASE));
    conn.query_drop("CREATE TABLE t (a INT)").unwrap();
    conn.query_drop("CREATE TABLE mysql.t (a INT)").unwrap_err();
    let sql = format!(
        "SELECT plugin FROM mysql.user WHERE user = '{}'",
        MySqlServer::USER
    );
    let plugin = match kind {
        MySqlKind::MariaDb10 => "mysql_native_password",
        MySqlKind::MySql9 => "caching_sha2_password",
    };
    assert_eq!(server.value(&sql).unwrap().as_deref(), Some(plugin));
    for login in ["root", "keeper", "unknown", ":"] {
        let url = format!("mysql://{login}@{}/", server.addr());
        connect(&url).expect_err("a password is needed");
    }
}

fn tls(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new().tls());
    let plain = start(kind, &MySqlOptions::new());
    let authority = server.certificates().unwrap().authority.clone();
    let tls = |server: &MySqlServer, authority| {
        let ssl = SslOpts::default().with_root_cert_path(Some(authority));
        let options = OptsBuilder::from_opts(Opts::from_url(&server.url()).unwrap());
        Conn::new(options.ssl_opts(ssl).prefer_socket(false))
    };
    let mut conn = tls(&server, authority.clone()).unwrap();
    let cipher: Option<(String, String)> = conn
        .query_first("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        .unwrap();
    assert!(!cipher.unwrap().1.is_empty());
    connect(&server.url()).expect("TLS is not required");
    tls(&plain, authority).expect_err("it has no TLS");
    let other = start(kind, &MySqlOptions::new().tls());
    let untrusted = other.certificates().unwrap().authority.clone();
    tls(&server, untrusted).expect_err("another authority signed the certificate");
}

fn restart_keeps_the_port(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new());
    let (url, pid) = (server.url(), server.pid().unwrap());
    let mut conn = connect(&url).unwrap();
    conn.query_drop("CREATE TABLE t (a INT)").unwrap();
    conn.query_drop("INSERT INTO t VALUES (7)").unwrap();
    conn.query_drop("SELECT GET_LOCK('a', 0)").unwrap();
    server.kill();
    assert!(server.pid().is_none() && !alive(pid));
    assert!(TcpStream::connect(server.addr()).is_err());
    assert!(server.client().is_err());
    // As if another process had the id of the killed one by now.
    let lock = format!("{}\n", parent_id());
    fs::write(server.folder().join("sock.lock"), lock).unwrap();
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    let free = "SELECT IS_FREE_LOCK('a')";
    assert_eq!(server.value(free).unwrap().as_deref(), Some("1"));
    // A running server restarts, too.
    server.restart().unwrap();
    assert_ne!(server.pid().unwrap(), pid);
    let rows = server.value("SELECT a FROM shop.t").unwrap();
    assert_eq!(rows.as_deref(), Some("7"));
}

fn stopped_server_does_not_reply(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new());
    let options = OptsBuilder::from_opts(Opts::from_url(&server.url()).unwrap());
    let mut conn = Conn::new(options.read_timeout(Some(Duration::from_millis(200)))).unwrap();
    server.stop().unwrap();
    conn.query_drop("DO 0")
        .expect_err("a stopped server does not reply");
    server.cont().unwrap();
    server.execute("DO 0").unwrap();
    // A stopped server ends, too.
    let pid = server.pid().unwrap();
    server.stop().unwrap();
    drop(server);
    assert!(!alive(pid));
}

fn settings(kind: MySqlKind) {
    let options = MySqlOptions::new()
        .config("max-connections", "10")
        .config("read-only", "ON");
    let server = start(kind, &options);
    let mut conn = connect(&server.url()).unwrap();
    let refused = conn.query_drop("CREATE TABLE t (a INT)").unwrap_err();
    assert!(refused.to_string().contains("read-only"), "{refused}");
    let _full: Vec<Conn> = (1..10).map(|_| connect(&server.url()).unwrap()).collect();
    let refused = connect(&server.url()).unwrap_err();
    assert!(refused.to_string().contains("1040"), "{refused}");
    // The refused connection may still count for a moment.
    until("root has room", || server.execute("DO 0").is_ok());
}

fn statement_counts(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new());
    let mut conn = connect(&server.url()).unwrap();
    let mut client = server.client().unwrap();
    let before = client.status("Questions").unwrap();
    for _ in 0..3 {
        conn.query_drop("DO 0").unwrap();
    }
    conn.ping().unwrap();
    // Including the statement that counts.
    assert_eq!(client.status("Questions").unwrap() - before, 4);
}

fn held_locks_and_waiting_sessions(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new().show_locks());
    let mut holder = connect(&server.url()).unwrap();
    holder.query_drop("SELECT GET_LOCK('a', 0)").unwrap();
    let mut waiter = connect(&server.url()).unwrap();
    let waiting = thread::spawn(move || {
        let answer: Option<Option<i64>> = waiter.query_first("SELECT GET_LOCK('a', 60)").unwrap();
        answer
    });
    until("the waiter is listed", || {
        let sessions = server.sessions().unwrap();
        let waiting = sessions.iter().any(|one| {
            let statement = one.statement.as_deref();
            one.state == "User lock" && statement == Some("SELECT GET_LOCK('a', 60)")
        });
        let holds = sessions
            .iter()
            .any(|one| one.id == u64::from(holder.connection_id()) && one.command == "Sleep");
        sessions.len() == 2 && waiting && holds
    });
    let id = holder.connection_id();
    assert_eq!(server.held().unwrap(), [("a".to_owned(), id.into())]);
    server.execute(&format!("KILL {id}")).unwrap();
    assert_eq!(waiting.join().unwrap(), Some(Some(1)));
    holder.query_drop("DO 0").expect_err("it was killed");
    until("the sessions have ended", || {
        server.sessions().unwrap().is_empty()
    });
}

fn failed_start_shows_the_log(kind: MySqlKind) {
    let options = MySqlOptions::new().config("no-such-setting", "1");
    let error = MySqlServer::start(kind, &options).unwrap_err().to_string();
    assert!(
        error.contains("no-such-setting") && error.contains(kind.name()),
        "{error}"
    );
}

fn proxy_in_front(kind: MySqlKind) {
    let server = start(kind, &MySqlOptions::new());
    let proxy = Proxy::new(server.addr()).unwrap();
    let mut conn = connect(&server.url_via(proxy.addr())).unwrap();
    proxy.once("'seen by the server'", Fault::CutReplyAfter(0));
    conn.query_drop("SELECT GET_LOCK('seen by the server', 0)")
        .expect_err("it was cut");
    assert!(proxy.wait_for(TIMEOUT, |counts| counts.cut == 1));
    let mut stream = TcpStream::connect(proxy.addr()).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.read_exact(&mut [0; 5]).unwrap();
}
