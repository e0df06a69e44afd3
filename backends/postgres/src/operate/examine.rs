//! Finds what is known to break advisory locks on a server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Finding;
use lockkeeper_remote::{Failure, RemoteOptions, connections_finding, restart_finding, senseless};

use crate::connection::Connection;
use crate::connection::opening::{self, NOT_KEPT, TOPOLOGY};

const TIME: &str = "SELECT (1000000 * date_part('epoch', clock_timestamp()))::int8";
/// Returns the number of sessions, then their limits: of the server, of this user, and of this database (-1 for
/// none). Then come the database and the room for locks. The last three columns are rights of this user: to see the
/// statements of all users, to end sessions of users who are no superusers, and whether the user is a superuser.
const LIMITS: &str = "SELECT (SELECT sum(numbackends) FROM pg_stat_database), current_setting('max_connections'), (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user), (SELECT datconnlimit FROM pg_database WHERE datname = current_database()), current_database(), current_setting('max_locks_per_transaction')::int8 * (current_setting('max_connections')::int8 + current_setting('max_prepared_transactions')::int8), pg_has_role('pg_read_all_stats', 'USAGE'), pg_has_role('pg_signal_backend', 'USAGE'), (SELECT rolsuper FROM pg_roles WHERE rolname = current_user)";

pub(crate) fn examine(
    connection: &mut Connection,
    options: &RemoteOptions,
) -> Result<Vec<Finding>, Failure> {
    let before = SystemTime::now();
    let time = connection.query(TIME, &[])?;
    let after = SystemTime::now();
    let time = time.number(0).map(Duration::from_micros);
    let time = time.and_then(|since| UNIX_EPOCH.checked_add(since));
    let time = time.ok_or_else(|| Failure::Refused(senseless()))?;
    let limits = connection.query(LIMITS, &[])?;
    let [open, most, user, database] = [0, 1, 2, 3].map(|at| limits.number(at).unwrap_or(0));
    let own = [user, database]
        .into_iter()
        .filter(|limit| *limit > 0)
        .min();
    let name = limits.text(4).unwrap_or_default();
    let room = limits.number::<u64>(5).unwrap_or(0);
    let mut findings = vec![
        Finding::fine("version", format!("PostgreSQL {}", connection.version)),
        Finding::fine(
            "database",
            format!("locks are those of the database {name}"),
        )
        .meaning("each database has locks of its own, so all programs must be in the same one"),
        Finding::clocks(before, time, after),
        topology(connection),
        idle(connection)?,
        connections_finding(
            open,
            most,
            own.unwrap_or(0),
            "the CONNECTION LIMIT",
            options.pool_size,
        ),
        Finding::fine("room", format!("the server has room for some {room} locks"))
            .meaning("all users share it (max_locks_per_transaction)"),
        restart_finding(options.restart_grace),
    ];
    let may = |what| Finding::fine("unlock", format!("this user may free {what} (unlock)"));
    findings.push(match [8, 7].map(|at| limits.is_true(at)) {
        [true, _] => may("the locks of all users"),
        [_, true] => may("the locks of all users but superusers"),
        _ => may("its own locks and those of its roles")
            .meaning("GRANT pg_signal_backend lets it free those of others"),
    });
    if !limits.is_true(6) {
        let what = "this user sees the names that its own sessions hold, and hashes of others";
        findings
            .push(Finding::fine("names", what).meaning("GRANT pg_read_all_stats lets it see all"));
    }
    Ok(findings)
}

fn topology(connection: &Connection) -> Finding {
    if connection.is_replica {
        return Finding::unusable(
            TOPOLOGY,
            "this server is a replica",
            "its locks and its primary's never meet",
            "connect to the primary",
        );
    }
    Finding::fine(
        TOPOLOGY,
        match connection.is_pooled() {
            true => "it is a primary, behind a pool that keeps a session for each connection",
            false => "it is a primary, and no pool hands out its sessions",
        },
    )
}

fn idle(connection: &mut Connection) -> Result<Finding, Failure> {
    let topic = "idle_session_timeout";
    if opening::keeps_idle(connection)? {
        return Ok(Finding::fine(
            topic,
            "the server ends a silent session when it is told to (idle_session_timeout)",
        ));
    }
    Ok(Finding::unusable(
        topic,
        NOT_KEPT,
        "a holder that has stopped keeps its lock",
        "find out what sets it: a pool, or a limit of the provider's",
    ))
}
