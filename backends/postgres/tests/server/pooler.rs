//! PgBouncer: a pool that keeps a session for each connection is good, and any other breaks locks.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::process::{Command, ExitCode};
use std::thread;

use libtest_mimic::Trial;
use lockkeeper_core::ErrorKind;
use lockkeeper_postgres::PlainClient;
use lockkeeper_testkit::{PgBouncer, PoolMode, PostgresKind, PostgresServer, until};

use crate::admin::found;
use crate::checks::{WAIT_LIMIT, waits_in_vain, with_timeouts};
use crate::store::{holder, open, options, start_own, trial, try_open};

const KIND: PostgresKind = PostgresKind::Postgres15;

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [(_, fn()); 7] = [
        (
            "pgbouncer::other_modes_are_refused",
            other_modes_are_refused,
        ),
        (
            "pgbouncer::session_mode_keeps_locks",
            session_mode_keeps_locks,
        ),
        (
            "pgbouncer::outage_behind_it_is_ridden_out",
            outage_behind_it_is_ridden_out,
        ),
        (
            "pgbouncer::starting_server_behind_fresh_pool_is_an_outage",
            starting_server_behind_fresh_pool_is_an_outage,
        ),
        ("pgbouncer::proof_fits_every_mode", proof_fits_every_mode),
        (
            "pgbouncer::table_excludes_processes_in_every_mode",
            table_excludes_processes_in_every_mode,
        ),
        (
            "pgbouncer::wrong_settings_open_no_fallback",
            wrong_settings_open_no_fallback,
        ),
    ];
    let ignored = || KIND.ignored().or_else(PgBouncer::ignored);
    let trial = |(name, case)| trial(name, ignored, case);
    cases.map(trial).into()
}

fn other_modes_are_refused() {
    let server = start_own(KIND);
    for mode in [PoolMode::Transaction, PoolMode::Statement] {
        for start in [PgBouncer::start, PgBouncer::start_with_one_session] {
            let pool = start(&server, mode).unwrap();
            let url = with_timeouts(&server.url_via(pool.addr()));
            // The second time, sessions of the server are idle in the pool.
            for _ in 0..2 {
                let error = try_open(&url).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
                assert!(error.message().contains("pool_mode=session"), "{error}");
            }
        }
        // Nothing is left on the server's sessions, which other clients get.
        let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(server.value(sql).unwrap(), "0");
    }
}

fn session_mode_keeps_locks() {
    let server = start_own(KIND);
    let pool = PgBouncer::start(&server, PoolMode::Session).unwrap();
    let pooled = try_open(&with_timeouts(&server.url_via(pool.addr()))).unwrap();
    let direct = open(&server, "");
    let held = pooled.lock("a").unwrap();
    waits_in_vain(&direct);
    drop(held);
    let held = direct.lock("a").unwrap();
    waits_in_vain(&pooled);
    drop(held);
    drop(pooled.lock("a").unwrap());
    let topology = found(&pooled, "topology");
    assert!(topology.what.contains("behind a pool"), "{topology:?}");
}

/// The pool itself answers, and has one code for all its errors.
fn outage_behind_it_is_ridden_out() {
    let server = start_own(KIND);
    let pool = PgBouncer::start(&server, PoolMode::Session).unwrap();
    let url = server.url_via(pool.addr());
    let keeper = try_open(&with_timeouts(&format!("{url}?wait=30s"))).unwrap();
    // The next attempt would go behind a release whose reply is pending.
    keeper.lock("a").unwrap().release().unwrap();
    server.kill();
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    server.restart().unwrap();
    drop(keeper.lock("a").unwrap());
    let wrong = url.replace(PostgresServer::PASSWORD, "wrong");
    let error = try_open(&wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
}

/// A pool that has not logged in to the server yet sends what the server says, with the pool's own code before version 1.20.
fn starting_server_behind_fresh_pool_is_an_outage() {
    let server = start_own(KIND);
    server.kill();
    let (data, go) = (server.folder().join("data"), server.folder().join("go"));
    // The server recovers until the file is there.
    let wait = format!("until [ -e {} ]; do sleep 0.05; done; exit 1", go.display());
    let settings = format!("hot_standby=off\nrestore_command='{wait}'\n");
    fs::write(data.join("postgresql.auto.conf"), settings).unwrap();
    fs::write(data.join("recovery.signal"), "").unwrap();
    thread::scope(|scope| {
        let restarted = scope.spawn(|| server.restart().unwrap());
        until("the server listens", || {
            TcpStream::connect(server.addr()).is_ok()
        });
        let pool = PgBouncer::start(&server, PoolMode::Session).unwrap();
        let url = with_timeouts(&server.url_via(pool.addr()));
        let opened = try_open(&url);
        fs::write(go, "").unwrap();
        restarted.join().unwrap();
        let error = opened.unwrap_err();
        assert!(error.is_unreachable(), "{error:?}");
        assert!(error.message().contains("database system"), "{error}");
        until("the pool has tried again", || try_open(&url).is_ok());
    });
}

/// The locks are on connections of their own, and the data are behind the pool of the application.
fn proof_fits_every_mode() {
    let server = start_own(KIND);
    let keeper = open(&server, "");
    for mode in PoolMode::ALL {
        let guard = keeper.lock("a").unwrap();
        let proof = guard.commit_proof().unwrap();
        let pool = PgBouncer::start(&server, mode).unwrap();
        let mut data = PlainClient::connect(&options(pool.addr())).unwrap();
        let mut held = || {
            let reply = data.run(proof.sql(), WAIT_LIMIT).unwrap();
            reply.rows[0][0].clone().unwrap()
        };
        assert_eq!(held(), "1", "{mode:?}");
        let end = format!("SELECT pg_terminate_backend({}, 10000)", holder(&server));
        server.execute(&end).unwrap();
        assert_eq!(held(), "0", "{mode:?}");
    }
}

/// The variable by which a process of a case is given the URL of its locks and data.
const URL: &str = "LOCKKEEPER_TEST_TABLE";
const PROCESSES: i64 = 6;
const LOCKS: i64 = 8;

/// Each process adds to a number that it reads before. A lost update would show, and a token that does not grow.
fn table_excludes_processes_in_every_mode() {
    let server = start_own(KIND);
    let mut data = PlainClient::connect(&options(server.addr())).unwrap();
    let mut run = |sql: &str| data.run(sql, WAIT_LIMIT).unwrap();
    run("CREATE TABLE counter (count int8, token int8)");
    for mode in [PoolMode::Transaction, PoolMode::Statement] {
        for start in [PgBouncer::start, PgBouncer::start_with_one_session] {
            let pool = start(&server, mode).unwrap();
            let url = format!("{}?locks=table&wait=10m", server.url_via(pool.addr()));
            run("TRUNCATE counter; INSERT INTO counter VALUES (0, 0)");
            let mut processes = Vec::from_iter((0..PROCESSES).map(|_| {
                let mut command = Command::new(env::current_exe().unwrap());
                command.env(URL, with_timeouts(&url)).spawn().unwrap()
            }));
            for process in &mut processes {
                assert!(process.wait().unwrap().success(), "{mode:?}");
            }
            let rows = run("SELECT count FROM counter").rows;
            let count = (PROCESSES * LOCKS).to_string();
            assert_eq!(rows, [[Some(count)]], "{mode:?}");
        }
    }
}

/// Runs this program as a process of [`table_excludes_processes_in_every_mode`], if it was started as one.
pub(crate) fn child() -> Option<ExitCode> {
    let url = env::var(URL).ok()?;
    let keeper = try_open(&url).unwrap();
    let address = url.split(['@', '/']).nth(3).unwrap().parse().unwrap();
    let mut data = PlainClient::connect(&options(address)).unwrap();
    for _ in 0..LOCKS {
        let guard = keeper.lock("counter").unwrap();
        let rows = data
            .run("SELECT count FROM counter", WAIT_LIMIT)
            .unwrap()
            .rows;
        let count: i64 = rows[0][0].as_ref().unwrap().parse().unwrap();
        let (next, token) = (count + 1, guard.token().as_i64());
        let set =
            format!("UPDATE counter SET count = {next}, token = {token} WHERE token < {token}");
        assert_eq!(data.run(&set, WAIT_LIMIT).unwrap().count, 1);
    }
    Some(ExitCode::SUCCESS)
}

fn wrong_settings_open_no_fallback() {
    let (server, fallback) = (start_own(KIND), start_own(KIND));
    let pool = PgBouncer::start_with_required_tls(&server, PoolMode::Session).unwrap();
    let url = server.url_via(pool.addr());
    let error = try_open(&format!("{url}?fallback={}", fallback.url())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert!(error.message().contains("tls=on"), "{error}");
}
