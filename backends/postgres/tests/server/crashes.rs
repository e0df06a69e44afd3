//! A server that is killed, or that ends all sessions since one of them has crashed.

use lockkeeper_core::ErrorKind;
use lockkeeper_testkit::{PostgresKind, PostgresServer, cases, until};

use crate::checks::is_refused;
use crate::store::{Case, open, start_own};

pub(crate) const CASES: &[Case] = cases![restart_grace_counts_from_a_crash,];

/// Kills a session, after which the server ends all others, forgets their locks and recovers.
fn crash_session(server: &PostgresServer) {
    let started = server.value(RESET).unwrap();
    let pid = i32::try_from(server.sessions().unwrap()[0]).unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-9", &pid.to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    until("the server has recovered", || {
        server.value(RESET).is_ok_and(|reset| reset != started)
    });
}

const RESET: &str = "SELECT pg_stat_get_bgwriter_stat_reset_time()";

fn restart_grace_counts_from_a_crash(kind: PostgresKind) {
    let server = start_own(kind);
    let old = open(&server, "");
    let _held = old.lock("a").unwrap();
    let up = || -> f64 {
        let sql = "SELECT date_part('epoch', clock_timestamp() - pg_postmaster_start_time())";
        server.value(sql).unwrap().parse().unwrap()
    };
    let before = up();
    until("the server is up for longer than its start takes", || {
        up() > before + 3.0
    });
    let crashed = up();
    crash_session(&server);
    let keeper = open(&server, "restart_grace=1h");
    let error = keeper.try_lock("a").unwrap_err();
    is_refused(
        Err::<(), _>(error.clone()),
        ErrorKind::Unavailable,
        &["restart_grace"],
    );
    let after = up();
    let text = error.to_string();
    let left = text.split("for another ").nth(1).unwrap();
    let left: f64 = left.split('s').next().unwrap().parse().unwrap();
    assert!(
        left > 3_600.0 - (after - crashed) - 1.0,
        "crashed after {crashed} s, asked before {after} s: {text}"
    );
    drop(
        open(&server, "restart_grace=1ms&wait=30s")
            .lock("a")
            .unwrap(),
    );
}
