//! Commit proofs within the application's own transaction.

use std::thread;
use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CommitProof, ErrorKind, LeasePolicy, LockName, ProofValue};
use lockkeeper_testkit::{MySqlKind, MySqlServer, cases, until};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, Row, Value};

use crate::checks::soon;
use crate::store::{Case, open, start, start_own};

pub(crate) const CASES: &[Case] = cases![
    proof_is_for_one_lease_only,
    proof_fits_one_server_only,
    proofs_outlast_the_counter_of_epochs,
    proof_outlasts_a_connection_after_a_step_of_the_counter,
];

fn application(server: &MySqlServer) -> Conn {
    Conn::new(Opts::from_url(&server.url()).unwrap()).unwrap()
}

/// Returns what the proof says, whose two forms must agree.
fn held(app: &mut impl Queryable, proof: &CommitProof<'_>) -> i64 {
    let row: Row = app.query_first(proof.sql()).unwrap().unwrap();
    // By name, as libraries that map rows to structures read it.
    let text: i64 = row.get("held").unwrap();
    assert_eq!(row.len(), 1, "{row:?}");
    let params: Vec<Value> = proof
        .params()
        .iter()
        .map(|value| match value {
            ProofValue::Text(text) => Value::from(text),
            ProofValue::Integer(number) => Value::from(*number),
        })
        .collect();
    let prepared: Option<i64> = app.exec_first(proof.statement(), params).unwrap();
    assert_eq!(prepared, Some(text), "{proof:?}");
    text
}

fn proof_is_for_one_lease_only(kind: MySqlKind) {
    let server = start_own(kind);
    // Use up ids, so that the restarted server does not reach the id below before the test does.
    for _ in 0..200 {
        drop(server.client().unwrap());
    }
    let keeper = open(&server, "pool_size=2&ttl=6s");
    let mut app = application(&server);
    // Keeps the session alive that the next lease would use: whole seconds decide which one that is.
    let _kept = keeper.lock("kept").unwrap();
    let fixed = |millis| {
        AcquireOptions::new().lease(LeasePolicy::Fixed {
            ttl: Duration::from_millis(millis),
        })
    };
    let late = keeper.acquire("a", &fixed(5_500)).unwrap().unwrap();
    let proof = late.commit_proof().unwrap();
    assert_eq!(held(&mut app, &proof), 1);
    // After the lease has expired, this process acquires the name again.
    until("the lease has expired", || {
        server.held().unwrap().len() == 1
    });
    let next = keeper.acquire("a", &fixed(6_000)).unwrap().unwrap();
    assert_eq!(held(&mut app, &proof), 0);
    assert_eq!(held(&mut app, &next.commit_proof().unwrap()), 1);
    assert!(late.commit_proof().is_err());

    // A restarted server repeats session ids.
    let session = |name: &str| {
        let held = server.held().unwrap();
        held.iter()
            .find(|(held, _)| held == name)
            .map(|(_, id)| *id)
    };
    let guard = keeper.lock("b").unwrap();
    let proof = guard.commit_proof().unwrap();
    let before = session("default:b").unwrap();
    server.restart().unwrap();
    // Without this, the crate connects twice: by TCP, and then by the socket.
    let url = format!("{}?prefer_socket=false", server.url());
    let _other = loop {
        let mut one = Conn::new(Opts::from_url(&url).unwrap()).unwrap();
        let id = u64::from(one.connection_id());
        assert!(id <= before, "{id} comes after {before}");
        if id == before {
            one.query_drop("DO GET_LOCK('default:b', 0)").unwrap();
            break one;
        }
    };
    assert_eq!(session("default:b"), Some(before));
    let mut app = application(&server);
    assert_eq!(held(&mut app, &proof), -1, "another server's session");
}

fn proof_fits_one_server_only(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "namespace=shop");
    let guard = keeper.lock("Product 7").unwrap();
    let proof = guard.commit_proof().unwrap();
    let dialect = match kind {
        MySqlKind::MariaDb10 => "MariaDB",
        MySqlKind::MySql9 => "MySQL",
    };
    assert_eq!(proof.dialect(), dialect);
    assert_eq!(proof.location(), keeper.location());
    assert_eq!(held(&mut application(&server), &proof), 1);

    // A proof allows one more step of the counter. A server that is started in that second would fit.
    thread::sleep(Duration::from_secs(2));
    let held = held(&mut application(&start_own(kind)), &proof);
    let error = proof.check(held).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let text = format!("another server than {}", keeper.location());
    assert!(error.to_string().contains(&text), "{error}");

    let sqlite = rusqlite::Connection::open_in_memory().unwrap();
    for sql in [proof.sql(), proof.statement()] {
        let error = sqlite.prepare(sql).unwrap_err().to_string();
        let text = "this_commit_proof_is_for_mysql_or_mariadb";
        assert!(error.contains(text), "{error}");
    }
    proof.check(1).unwrap();
}

/// Has the counter of `UUID_SHORT()` take a step of what begins as the second of the server's start.
fn use_up(app: &mut Conn) {
    app.query_drop("DO BENCHMARK(16777216, UUID_SHORT())")
        .unwrap();
}

/// After 2^24 calls, the counter of `UUID_SHORT()` reaches the bits that begin as the second of the server's start.
fn proofs_outlast_the_counter_of_epochs(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "pool_size=4");
    let mut app = application(&server);
    let held_before = keeper.lock("before").unwrap();
    let (admin, [before, after]) = (
        keeper.admin().unwrap(),
        ["before", "after"].map(|name| LockName::new(name).unwrap()),
    );
    // By a connection of its own, which is as old as the holder's.
    assert_eq!(admin.held(Some(&before), soon()).unwrap().len(), 1);
    use_up(&mut app);
    let held_after = keeper.lock("after").unwrap();
    for guard in [&held_before, &held_after] {
        assert_eq!(held(&mut app, &guard.commit_proof().unwrap()), 1);
    }
    for _ in 0..2 {
        use_up(&mut app);
        // Renewals learn of the steps.
        held_before.renew().unwrap();
        assert_eq!(held(&mut app, &held_before.commit_proof().unwrap()), 1);
    }
    let shown = admin.held(Some(&after), soon()).unwrap();
    assert!(admin.force_release(&shown[0], soon()).unwrap());
    until("the guard is lost", || held_after.ensure_held().is_err());
    // An operator's session, which is younger, names those of before.
    let operator = open(&server, "");
    let admin = operator.admin().unwrap();
    let shown = admin.held(Some(&before), soon()).unwrap();
    assert!(admin.force_release(&shown[0], soon()).unwrap());
    until("the guard is lost", || held_before.ensure_held().is_err());
}

/// The connection is opened before a renewal learns of the step.
fn proof_outlasts_a_connection_after_a_step_of_the_counter(kind: MySqlKind) {
    let server = start_own(kind);
    let keeper = open(&server, "");
    let mut app = application(&server);
    let guard = keeper.lock("a").unwrap();
    let number = |app: &mut Conn, sql: &str| app.query_first::<u64, _>(sql).unwrap().unwrap();
    let clock = |app: &mut Conn| number(app, "SELECT UNIX_TIMESTAMP()");
    let opened = clock(&mut app);
    let counted = loop {
        use_up(&mut app);
        let counted = number(&mut app, "SELECT UUID_SHORT() >> 24 & 4294967295");
        if counted >= opened {
            break counted;
        }
    };
    until("the clock is ahead of the counter", || {
        clock(&mut app) > counted + 2
    });
    guard.renew().unwrap();
    use_up(&mut app);
    // By a connection of its own.
    let admin = keeper.admin().unwrap();
    let name = LockName::new("a").unwrap();
    assert_eq!(admin.held(Some(&name), soon()).unwrap().len(), 1);
    assert_eq!(held(&mut app, &guard.commit_proof().unwrap()), 1);
}
