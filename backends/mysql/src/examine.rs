//! Finds settings of a server that are known to break named locks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper_core::Finding;
use lockkeeper_remote::{Failure, senseless};
use mysql::Row;

use crate::connection::{Connection, number, text};
use crate::opening;

const LIMITS: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'max_connections', 'max_user_connections')";
const CONNECTED: &str = "SHOW GLOBAL STATUS LIKE 'Threads_connected'";
const TIME: &str = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)";
const IDLE: &str = "SELECT @@SESSION.wait_timeout";
/// A wait_timeout in seconds, to check whether the server keeps it.
const TRIED: u64 = 7;

pub(crate) fn examine(
    connection: &mut Connection,
    pool_size: u32,
    limit: Duration,
) -> Result<Vec<Finding>, Failure> {
    let limits = connection.rows(LIMITS, limit)?;
    let connected = connection.rows(CONNECTED, limit)?;
    let version = variable(&limits, "version").unwrap_or_else(|| "unknown".to_owned());
    let mut findings = vec![
        Finding::fine(
            "version",
            format!("{} {version}", connection.dialect.name()),
        ),
        clock(connection, limit)?,
        idle(connection, limit)?,
        connections(&limits, &connected, pool_size),
    ];
    findings.extend(topology(&opening::warnings(connection, limit)?));
    Ok(findings)
}

fn variable(rows: &[Row], name: &str) -> Option<String> {
    let row = rows
        .iter()
        .find(|row| text(row, 0).as_deref() == Some(name));
    row.and_then(|row| text(row, 1))
}

fn count(rows: &[Row], name: &str) -> u64 {
    let value = variable(rows, name).and_then(|value| value.parse().ok());
    value.unwrap_or(0)
}

fn clock(connection: &mut Connection, limit: Duration) -> Result<Finding, Failure> {
    let before = SystemTime::now();
    let row = connection.query(TIME, limit)?;
    let after = SystemTime::now();
    let theirs =
        number(&row, 0).and_then(|micros| UNIX_EPOCH.checked_add(Duration::from_micros(micros)));
    let theirs = theirs.ok_or_else(|| Failure::Refused(senseless()))?;
    Ok(Finding::clocks(before, theirs, after))
}

/// Checks that the server ends the session of a silent holder: leases rely on it.
fn idle(connection: &mut Connection, limit: Duration) -> Result<Finding, Failure> {
    let topic = "wait_timeout";
    connection.set_idle(TRIED, limit)?;
    if number(&connection.query(IDLE, limit)?, 0) == Some(TRIED) {
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

fn connections(limits: &[Row], connected: &[Row], pool_size: u32) -> Finding {
    let topic = "connections";
    let most = count(limits, "max_connections");
    let own = count(limits, "max_user_connections");
    let now = count(connected, "Threads_connected");
    let pool = u64::from(pool_size);
    let what = format!("{now} connections are open, of at most {most}");
    if own > 0 && own < pool {
        return Finding::warning(
            topic,
            format!("a user may have {own} connections, and pool_size is {pool_size}"),
            "a program that waits for many names runs into that",
            "raise max_user_connections, or lower pool_size",
        );
    }
    if most == 0 || now.saturating_add(pool) <= most {
        return Finding::fine(topic, what);
    }
    Finding::warning(
        topic,
        what,
        format!("a program that waits for many names needs up to {pool} of them"),
        "raise max_connections, or lower pool_size",
    )
}

fn topology(warnings: &[String]) -> Vec<Finding> {
    let topic = "topology";
    if warnings.is_empty() {
        let what = "it is written to, and no Galera node; no proxy shares out its connections";
        return vec![Finding::fine(topic, what)];
    }
    let warn = |text: &String| {
        // What was found, what it means, and what to do are told in one, with colon and semicolon.
        let (what, rest) = text.split_once(": ").unwrap_or((text.as_str(), ""));
        let (meaning, advice) = rest
            .split_once("; ")
            .unwrap_or((rest, "have all programs lock on one server"));
        Finding::warning(topic, what, meaning, advice)
    };
    warnings.iter().map(warn).collect()
}
