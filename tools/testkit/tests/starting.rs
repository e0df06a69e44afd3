//! Real servers are started, stopped, killed, and used again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "that is how a test fails"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::parent_id;
use std::process::{Command, ExitCode, Stdio};
use std::thread;

use lockkeeper_testkit::suite::{self, Case};
use lockkeeper_testkit::{
    MySqlKind, MySqlOptions, MySqlServer, PostgresKind, Proxy, RedisKind, RedisOptions,
    RedisServer, Reply, StoreKind, TestServer,
};
use mysql::prelude::Queryable as _;
use mysql::{Conn, Opts, OptsBuilder};

fn main() -> ExitCode {
    let common: [Case<StoreKind>; 2] = [
        ("restart_keeps_the_port", restart_keeps_the_port),
        ("stopped_server_ends", stopped_server_ends),
    ];
    let redis: [Case<RedisKind>; 3] = [
        ("all_transports", all_transports),
        ("data_outlive_a_restart", data_outlive_a_restart),
        ("redis_that_fails_shows_its_log", redis_that_fails),
    ];
    let mysql: [Case<MySqlKind>; 3] = [
        ("logins", logins),
        ("statement_counts", statement_counts),
        ("mysql_that_fails_shows_its_log", mysql_that_fails),
    ];
    let mut trials = suite::trials(common);
    // One is wiped, and the other ends its sessions.
    let reset = [
        StoreKind::Redis(RedisKind::Redis7),
        StoreKind::Postgres(PostgresKind::Postgres15),
    ];
    trials.extend(reset.map(|kind| {
        let case: Case<StoreKind> = ("clean_server_is_used_again", clean_server_is_used_again);
        suite::trial(kind, case)
    }));
    let port: Case<RedisKind> = ("killed_server_keeps_its_port", killed_server_keeps_its_port);
    trials.push(suite::trial(RedisKind::Redis7, port));
    trials.extend(suite::trials(redis));
    trials.extend(suite::trials(mysql));
    trials.extend(RedisKind::ALL.map(|kind| {
        let case = ("clock_is_set", clock_is_set as fn(RedisKind));
        suite::trial_unless(kind, RedisKind::clock_ignored, case)
    }));
    libtest_mimic::run(&suite::arguments(), trials).exit_code()
}

/// Returns the state of a process, such as `T` for a stopped one. `None`: it has ended.
fn state_of(pid: u32) -> Option<char> {
    let mut ps = Command::new("ps");
    let said = ps.args(["-o", "stat=", "-p", &pid.to_string()]).output();
    let said = String::from_utf8(said.unwrap().stdout).unwrap();
    said.trim().chars().next().filter(|state| *state != 'Z')
}

fn pid_of(server: &dyn TestServer) -> Option<u32> {
    server.processes()[0].pid()
}

fn restart_keeps_the_port(kind: StoreKind) {
    let server = kind.start().unwrap();
    let (url, pid) = (server.url(), pid_of(&*server).unwrap());
    let connect = || TcpStream::connect(server.single_addr().unwrap());
    server.kill();
    assert_eq!((pid_of(&*server), state_of(pid)), (None, None));
    assert!(connect().is_err());
    assert!(server.leftovers().is_err());
    // As if another process had the id of a killed MySQL by now.
    let lock = server.processes()[0].folder().join("sock.lock");
    fs::write(lock, format!("{}\n", parent_id())).unwrap();
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    connect().unwrap();
    // A running server restarts, too.
    server.restart().unwrap();
    assert_ne!(pid_of(&*server).unwrap(), pid);
    assert_eq!(server.leftovers().unwrap(), [""; 0]);
}

fn stopped_server_ends(kind: StoreKind) {
    let server = kind.start().unwrap();
    let pid = pid_of(&*server).unwrap();
    server.stop().unwrap();
    assert_eq!(state_of(pid), Some('T'));
    server.resume().unwrap();
    assert_eq!(server.leftovers().unwrap(), [""; 0]);
    server.stop().unwrap();
    drop(server);
    assert_eq!(state_of(pid), None);
}

/// Other cases of this program may share servers of these kinds at the same time, so none of them does.
fn clean_server_is_used_again(kind: StoreKind) {
    let take = || kind.share().unwrap();
    let first = take();
    let (pid, second) = (pid_of(&*first), take());
    assert_ne!(pid_of(&*second), pid, "the first one is in use");
    let longer = second.to_arc();
    drop((first, second));
    let (first, other) = (take(), take());
    assert_eq!(pid_of(&*first), pid);
    assert_ne!(pid_of(&*other), pid_of(&*longer), "it is still used");
    drop(other);
    let panicked = thread::spawn(move || {
        let _used = first;
        std::panic::resume_unwind(Box::new("as a test does"));
    });
    panicked.join().unwrap_err();
    let killed = take();
    assert_ne!(pid_of(&*killed), pid, "the test of the first one panicked");
    killed.kill();
    drop(killed);
    let last = take();
    last.leftovers().expect("a killed server is not used again");
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

/// So many ports were drawn since the server started that its own could be drawn again, if it did not listen.
fn killed_server_keeps_its_port(kind: RedisKind) {
    let server = start(kind, &RedisOptions::new());
    let drawn = || Proxy::new(server.addr()).unwrap().addr();
    let others: Vec<_> = (0..1_600).map(|_| drawn()).collect();
    assert!(!others.contains(&server.addr()));
    server.kill();
    let others: Vec<_> = (0..1_000).map(|_| drawn()).collect();
    assert!(!others.contains(&server.addr()));
    server.restart().unwrap();
}

fn data_outlive_a_restart(kind: RedisKind) {
    let options = RedisOptions::new().config("appendonly", ["yes"]);
    let server = start(kind, &options.config("appendfsync", ["always"]));
    server.command(&["SET", "name", "value"]).unwrap();
    server.restart().unwrap();
    let value = server.command(&["GET", "name"]).unwrap();
    assert_eq!(value.text().as_deref(), Some("value"));
}

fn redis_that_fails(kind: RedisKind) {
    let options = RedisOptions::new().config("no-such-setting", ["1"]);
    let error = RedisServer::start(kind, &options).unwrap_err().to_string();
    assert!(error.contains("no-such-setting") && error.contains(kind.name()));
}

fn connect(url: &str) -> mysql::Result<Conn> {
    let options = OptsBuilder::from_opts(Opts::from_url(url).unwrap());
    Conn::new(options.prefer_socket(false))
}

fn logins(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new()).unwrap();
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

fn statement_counts(kind: MySqlKind) {
    let server = MySqlServer::start(kind, &MySqlOptions::new()).unwrap();
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

fn mysql_that_fails(kind: MySqlKind) {
    let options = MySqlOptions::new().config("no-such-setting", "1");
    let error = MySqlServer::start(kind, &options).unwrap_err().to_string();
    assert!(error.contains("no-such-setting") && error.contains(kind.name()));
}
