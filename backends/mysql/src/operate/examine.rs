//! Finds settings of a server that are known to break named locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Finding;
use lockkeeper_remote::{Failure, RemoteOptions, connections_finding, restart_finding, senseless};
use lockkeeper_sessions::SessionConnection as _;

use crate::connection::{Connection, opening};
use crate::statements::{number, text};

const LIMITS: &str = "SELECT @@version, @@GLOBAL.max_connections, @@GLOBAL.max_user_connections";
const CONNECTED: &str = "SHOW GLOBAL STATUS LIKE 'Threads_connected'";
const TIME: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)";
const IDLE: &str = "SELECT @@SESSION.wait_timeout";
/// A wait_timeout, to check whether the server keeps it.
const TRIED: Duration = Duration::from_secs(7);

pub(crate) fn examine(
    connection: &mut Connection,
    options: &RemoteOptions,
) -> Result<Vec<Finding>, Failure> {
    let limits = connection.query(LIMITS)?;
    let name = connection.dialect.name();
    let version = text(&limits, 0).unwrap_or_else(|| "unknown".to_owned());
    let [most, own] = [1, 2].map(|at| number(&limits, at).unwrap_or(0));
    let open = number(&connection.query(CONNECTED)?, 1).unwrap_or(0);
    let mut findings = vec![
        Finding::fine("version", format!("{name} {version}")),
        clock(connection)?,
        idle(connection)?,
        connections_finding(open, most, own, "max_user_connections", options.pool_size),
        restart_finding(options.restart_grace),
    ];
    let warnings = opening::warnings(connection)?;
    if warnings.is_empty() {
        findings.push(Finding::fine(
            opening::TOPOLOGY,
            "it is written to, and no Galera node; no proxy shares out its connections",
        ));
    }
    findings.extend(warnings);
    Ok(findings)
}

fn clock(connection: &mut Connection) -> Result<Finding, Failure> {
    let before = SystemTime::now();
    let row = connection.query(TIME)?;
    let after = SystemTime::now();
    let theirs = number(&row, 0).map(Duration::from_micros);
    let theirs = theirs.and_then(|since| UNIX_EPOCH.checked_add(since));
    let theirs = theirs.ok_or_else(|| Failure::Refused(senseless()))?;
    Ok(Finding::clocks(before, theirs, after))
}

/// Checks that the server ends the session of a silent holder: leases rely on it.
fn idle(connection: &mut Connection) -> Result<Finding, Failure> {
    let topic = "wait_timeout";
    connection.set_idle(TRIED)?;
    if number(&connection.query(IDLE)?, 0) == Some(TRIED.as_secs()) {
        return Ok(Finding::fine(
            topic,
            "the server ends a silent session when it is told to (wait_timeout)",
        ));
    }
    Ok(Finding::unusable(
        topic,
        "the server does not keep a session's own wait_timeout",
        "a holder that has stopped keeps its lock for hours",
        "find out what sets it: init_connect, a proxy, a limit of the provider's",
    ))
}
