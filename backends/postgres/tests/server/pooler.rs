//! PgBouncer: a pool that keeps a session for each connection is good, and any other breaks locks.

use std::time::Duration;

use libtest_mimic::{Completion, Failed, Trial};
use lockkeeper_core::ErrorKind;
use lockkeeper_testkit::{PgBouncer, PoolMode, PostgresKind, PostgresServer};

use crate::store::{open, soon, start_own, try_open, with_timeouts};

const KIND: PostgresKind = PostgresKind::Postgres15;

pub(crate) fn trials() -> Vec<Trial> {
    let cases: [(_, fn()); 3] = [
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
    ];
    let trial = |(name, case): (&str, fn())| {
        Trial::ignorable_test(name, move || {
            match KIND.ignored().or_else(PgBouncer::ignored) {
                Some(reason) => Ok(Completion::ignored_with(reason)),
                None => {
                    case();
                    Ok::<_, Failed>(Completion::Completed)
                }
            }
        })
    };
    cases.map(trial).into()
}

fn other_modes_are_refused() {
    let server = start_own(KIND);
    for mode in [PoolMode::Transaction, PoolMode::Statement] {
        let pool = PgBouncer::start(&server, mode).unwrap();
        let url = server.url_via(pool.addr());
        // The second time, sessions of the server are idle in the pool.
        for _ in 0..2 {
            let error = try_open(&url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
            assert!(error.message().contains("pool_mode=session"), "{error}");
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
    let none = direct.try_lock_for("a", Duration::from_secs(1));
    assert!(none.unwrap().is_none());
    drop(held);
    let held = direct.lock("a").unwrap();
    let none = pooled.try_lock_for("a", Duration::from_secs(1));
    assert!(none.unwrap().is_none());
    drop(held);
    drop(pooled.lock("a").unwrap());
    let findings = pooled.admin().unwrap().examine(soon()).unwrap();
    let found = findings.iter().find(|found| found.topic == "topology");
    assert!(
        found.unwrap().what.contains("behind a pool"),
        "{findings:?}"
    );
}

/// The pool itself answers, and has one code for all its errors.
fn outage_behind_it_is_ridden_out() {
    let server = start_own(KIND);
    let pool = PgBouncer::start(&server, PoolMode::Session).unwrap();
    let url = server.url_via(pool.addr());
    let keeper = try_open(&with_timeouts(&format!("{url}?wait=30s"))).unwrap();
    drop(keeper.lock("a").unwrap());
    server.kill();
    let error = keeper.try_lock("a").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    server.restart().unwrap();
    drop(keeper.lock("a").unwrap());
    let wrong = url.replace(PostgresServer::PASSWORD, "wrong");
    let error = try_open(&wrong).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
}
