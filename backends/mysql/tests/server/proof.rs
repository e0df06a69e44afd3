//! The last statement of the application's own transaction: a late commit is refused.

use std::time::Duration;

use lockkeeper_core::{AcquireOptions, CommitProof, LeasePolicy, LockGuard, ProofValue};
use lockkeeper_testkit::{MySqlKind, MySqlServer};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, TxOpts, Value};

use crate::rig::{Case, open, start, until};

pub(crate) const CASES: &[Case] = &[
    ("a_late_commit_is_refused", a_late_commit_is_refused),
    (
        "a_proof_is_for_one_lease_only",
        a_proof_is_for_one_lease_only,
    ),
];

fn application(server: &MySqlServer) -> Conn {
    let mut app = Conn::new(Opts::from_url(&server.url()).unwrap()).unwrap();
    app.query_drop("CREATE TABLE IF NOT EXISTS product (id INT PRIMARY KEY, stock INT)")
        .unwrap();
    app.query_drop("REPLACE INTO product VALUES (7, 100)")
        .unwrap();
    app
}

/// What both forms of a proof say; they must not differ.
fn holds(app: &mut impl Queryable, proof: &CommitProof<'_>) -> bool {
    let text: Option<i64> = app.query_first(proof.sql()).unwrap();
    let params: Vec<Value> = proof
        .params()
        .iter()
        .map(|value| match value {
            ProofValue::Text(text) => Value::from(text),
            ProofValue::Integer(number) => Value::from(*number),
        })
        .collect();
    let prepared: Option<i64> = app.exec_first(proof.statement(), params).unwrap();
    assert_eq!(text, prepared, "{proof:?}");
    assert!(matches!(text, Some(0 | 1)), "{text:?}");
    text == Some(1)
}

/// Writes, and commits if the guard still holds.
fn sell(app: &mut Conn, guard: &LockGuard, before_commit: impl FnOnce()) -> bool {
    let proof = guard.commit_proof().unwrap();
    let mut transaction = app.start_transaction(TxOpts::default()).unwrap();
    transaction
        .query_drop("UPDATE product SET stock = stock - 1 WHERE id = 7")
        .unwrap();
    before_commit();
    let is_held = holds(&mut transaction, &proof);
    if is_held {
        transaction.commit().unwrap();
    } else {
        transaction.rollback().unwrap();
    }
    is_held
}

fn a_late_commit_is_refused(kind: MySqlKind) {
    let server = start(kind);
    let keeper = open(&server, "namespace=shop");
    let mut app = application(&server);
    let guard = keeper.lock("Product 7").unwrap();
    assert!(sell(&mut app, &guard, || {}));

    // The holder's session is ended before the commit, and nobody has told the guard.
    let next = open(&server, "namespace=shop");
    let refused = !sell(&mut app, &guard, || {
        let (_, session) = server.held().unwrap().remove(0);
        server.execute(&format!("KILL {session}")).unwrap();
        until("it is freed", || server.held().unwrap().is_empty());
        drop(next.lock("Product 7").unwrap());
    });
    assert!(guard.is_held(), "it has not looked yet");
    assert!(refused, "the late commit went through");
    let stock: Option<i64> = app.query_first("SELECT stock FROM product").unwrap();
    assert_eq!(stock, Some(99));
}

fn a_proof_is_for_one_lease_only(kind: MySqlKind) {
    let server = start(kind);
    // So that the numbers below have not been given again before they are asked for.
    for _ in 0..200 {
        drop(server.client().unwrap());
    }
    let keeper = open(&server, "pool_size=2&ttl=2s");
    let mut app = application(&server);
    // Keeps the session alive, on which the next holder would be.
    let _kept = keeper.lock("kept").unwrap();
    let fixed = |millis| {
        AcquireOptions::new().lease(LeasePolicy::Fixed {
            ttl: Duration::from_millis(millis),
        })
    };
    let late = keeper.acquire("a", &fixed(1_500)).unwrap().unwrap();
    let proof = late.commit_proof().unwrap();
    assert!(holds(&mut app, &proof));
    // Over by its time; then another thread of this very process has it, and would on that session.
    until("it is over", || server.held().unwrap().len() == 1);
    let next = keeper.acquire("a", &fixed(2_000)).unwrap().unwrap();
    assert!(!holds(&mut app, &proof));
    assert!(holds(&mut app, &next.commit_proof().unwrap()));
    assert!(late.commit_proof().is_err());

    // A server that was started anew gives its sessions' numbers again.
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
    // The crate would connect a second time to come by the socket.
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
    assert!(!holds(&mut app, &proof), "another server's session");
}
