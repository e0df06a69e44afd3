//! Locks in a table: the proof locks the entry until the transaction ends, so nobody is granted the name before.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use lockkeeper::clock::{Clock as _, SystemClock};
use lockkeeper::transactions::{CommitError, OpenTransaction as _};
use lockkeeper::{AcquireOptions, LeasePolicy, LockGuard, LockKeeper};
use lockkeeper_testkit::suite::{self, ServerKind};
use lockkeeper_testkit::{MySqlKind, PostgresKind, until};

use crate::application::{Application, Ended, Proved};
use crate::{cases, mysql, postgres};

const NAME: &str = "seat:42";
/// How often another keeper asks while the transaction is open.
const REQUESTS: u64 = 20;

type Case<A> = (&'static str, fn(&str, &str, &mut A));

fn all<Kind, A: Application<Kind>>() -> [Case<A>; 3] {
    [
        ("table::held_lock_is_proved", |url, _, application| {
            cases::commit(url, application, Proved::ByStatement);
        }),
        ("table::next_holder_waits_for_the_commit", next_holder_waits),
        ("table::proof_after_the_next_grant_fails", proof_is_late),
    ]
}

/// Returns the cases on each kind of server and at each isolation level, and those of locks on another server.
fn on_each<K: ServerKind, A: Application + 'static>(
    start: fn(K) -> (Box<dyn Any>, String),
    connect: fn(&str) -> A,
    set_level: &'static str,
) -> Vec<Trial> {
    let mut trials = Vec::new();
    for &kind in K::all() {
        for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
            for (case, run) in all() {
                let name = format!("{kind}::{case}_{}", level.replace(' ', "_").to_lowercase());
                let run = move || {
                    let (_server, url) = start(kind);
                    let mut application = connect(&url);
                    application.run_outside(&format!("{set_level} {level}"));
                    run(&format!("{url}?locks=table"), level, &mut application);
                };
                trials.push(suite::named_trial(name, move || kind.ignored(), run));
            }
        }
        let name = format!("{kind}::table::lock_on_another_server_is_renewed");
        let run = move || {
            let ((_server, url), (_other, elsewhere)) = (start(kind), start(kind));
            let mut application = connect(&url);
            cases::commit(
                &format!("{elsewhere}?locks=table"),
                &mut application,
                Proved::ByRenewal,
            );
        };
        trials.push(suite::named_trial(name, move || kind.ignored(), run));
    }
    trials
}

pub(crate) fn trials() -> Vec<Trial> {
    let start = |kind: PostgresKind| -> (Box<dyn Any>, String) {
        let server = postgres::start(kind);
        let url = server.url();
        (Box::new(server), url)
    };
    let level = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL";
    let mut trials = on_each(start, postgres::connect, level);
    let start = |kind: MySqlKind| -> (Box<dyn Any>, String) {
        let server = mysql::start(kind);
        let url = server.url();
        (Box::new(server), url)
    };
    let level = "SET SESSION TRANSACTION ISOLATION LEVEL";
    trials.extend(on_each(start, mysql::connect, level));
    trials
}

/// Returns a guard that nothing renews.
fn fixed(keeper: &LockKeeper) -> LockGuard {
    let ttl = Duration::from_secs(1);
    let options = AcquireOptions::new().lease(LeasePolicy::Fixed { ttl });
    keeper.acquire(NAME, &options).unwrap().unwrap()
}

/// Waits until another keeper has seen that the lease has ended.
fn wait_for_end(other: &LockKeeper) {
    let (admin, name) = (other.admin().unwrap(), NAME.parse().unwrap());
    let soon = || SystemClock.now() + Duration::from_secs(30);
    until("the lease has ended", || {
        admin.held(Some(&name), soon()).unwrap().is_empty()
    });
}

/// The application is stopped between the proof and the commit, until its lease has ended.
fn next_holder_waits<Kind, A: Application<Kind>>(url: &str, _: &str, application: &mut A) {
    let (keeper, other) = (cases::open(url), cases::open(&format!("{url}&wait=60s")));
    let guard = fixed(&keeper);
    let is_granted = AtomicBool::new(false);
    thread::scope(|scope| {
        let next = || {
            let next = other.lock(NAME).unwrap();
            is_granted.store(true, Ordering::SeqCst);
            next.token()
        };
        let mut waiting = None;
        let ended: Ended<(), (), A, Kind> = application.transaction_of(|transaction| {
            transaction
                .execute(A::SELL)
                .map_err(CommitError::Database)?;
            let proof = guard.commit_proof().unwrap();
            let held = transaction
                .query(proof.sql())
                .map_err(CommitError::Database)?;
            assert_eq!(held, 1);
            waiting = Some(scope.spawn(next));
            wait_for_end(&other);
            let requests = || other.usage().unwrap().commands;
            let asked = requests() + REQUESTS;
            until("the other keeper asks again and again", || {
                let is_granted = is_granted.load(Ordering::SeqCst);
                assert!(!is_granted, "granted before the commit");
                requests() > asked
            });
            Ok(())
        });
        ended.unwrap();
        assert!(waiting.unwrap().join().unwrap() > guard.token());
    });
    assert_eq!(application.sold(), 1);
}

/// Another keeper is granted the name before the proof runs, and after the transaction has read.
fn proof_is_late<Kind, A: Application<Kind>>(url: &str, level: &str, application: &mut A) {
    let [keeper, other] = [(); 2].map(|()| cases::open(url));
    let guard = fixed(&keeper);
    let proof = guard.commit_proof().unwrap();
    let ended: Ended<(), i64, A, Kind> = application.transaction_of(|transaction| {
        let count = "SELECT count(*) AS held FROM sold";
        transaction.query(count).map_err(CommitError::Database)?;
        transaction
            .execute(A::SELL)
            .map_err(CommitError::Database)?;
        wait_for_end(&other);
        let _next = other.lock(NAME).unwrap();
        let held = transaction
            .query(proof.sql())
            .map_err(CommitError::Database)?;
        Err(CommitError::Work(held))
    });
    match ended {
        Err(CommitError::Work(0)) => {}
        // PostgreSQL and MariaDB: the entry was written after the snapshot.
        Err(CommitError::Database(_)) if level != "READ COMMITTED" => {}
        other => panic!("{other:?}"),
    }
    proof.check(0).unwrap_err();
    assert_eq!(application.sold(), 0);
}
