//! Inspects a server, and any proxy before it, on opening: do they keep named locks correctly?

use std::time::Duration;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Failure, nothing_granted, senseless};
use mysql::{Row, Value};

use crate::connection::{Connection, whole};
use crate::names::EncodedName;
use crate::statements::Flavour;

/// Lists the variables that matter; a server that lacks one leaves it out.
const VARIABLES: &str = "SHOW SESSION VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'wsrep_on', 'read_only', 'super_read_only', 'group_replication_group_name')";

/// The result of an inspection.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) flavour: Flavour,
    /// Conditions that may break locks, for people.
    pub(crate) warnings: Vec<String>,
}

/// Inspects the server, and does once all that a lock needs.
pub(crate) fn inspect(connection: &mut Connection, limit: Duration) -> Result<Found, Error> {
    let inspect = |connection: &mut Connection| -> Result<Found, Failure> {
        let rows = connection.rows(VARIABLES, limit)?;
        let found = judge(&rows).map_err(Failure::Refused)?;
        rehearse(connection, found.flavour, limit)?;
        Ok(found)
    };
    inspect(connection).map_err(nothing_granted)
}

/// Returns the conditions that may break locks.
pub(crate) fn warnings(
    connection: &mut Connection,
    limit: Duration,
) -> Result<Vec<String>, Failure> {
    let rows = connection.rows(VARIABLES, limit)?;
    let found = judge(&rows).map_err(Failure::Refused)?;
    Ok(found.warnings)
}

fn text(row: &Row, at: usize) -> &str {
    match row.as_ref(at) {
        Some(Value::Bytes(bytes)) => std::str::from_utf8(bytes).unwrap_or_default(),
        _ => "",
    }
}

fn judge(rows: &[Row]) -> Result<Found, Error> {
    let pairs: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (text(row, 0), text(row, 1)))
        .collect();
    judge_variables(&pairs)
}

fn judge_variables(pairs: &[(&str, &str)]) -> Result<Found, Error> {
    let value = |name: &str| {
        let found = pairs.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| *value)
    };
    let is_on = |name: &str| matches!(value(name), "ON" | "1");
    let unfit = |text: String| Err(Error::new(ErrorKind::Incompatible, text));
    let version = value("version");
    let comment = value("version_comment");
    if comment.contains("ProxySQL") || version.contains("ProxySQL") {
        return unfit(multiplexed());
    }
    let is_maria = version.contains("MariaDB") || comment.contains("MariaDB");
    let flavour = if is_maria {
        Flavour::MariaDb
    } else {
        Flavour::MySql
    };
    let least = if is_maria { [10, 0, 2] } else { [5, 7, 5] };
    if numbers(version) < least {
        return unfit(format!(
            "version {version} of the server lets a session hold one named lock only, and frees it without a word when it asks for a second; MySQL from 5.7.5 and MariaDB from 10.0.2 on are good"
        ));
    }
    if is_on("wsrep_on") {
        return unfit(
            "this server is a node of a Galera cluster, and named locks are each node's own: two nodes would grant the same name; lock on a server that is not in the cluster"
                .to_owned(),
        );
    }
    let mut warnings = Vec::new();
    if is_on("read_only") || is_on("super_read_only") {
        warnings.push(
            "this server is read-only, so probably a replica: its locks and its primary's never meet; have all programs lock on the same server".to_owned(),
        );
    }
    if !value("group_replication_group_name").is_empty() {
        warnings.push(
            "this server is a member of a replication group, and named locks are each member's own: have all programs lock on the same member, and expect none to survive when that one fails".to_owned(),
        );
    }
    Ok(Found { flavour, warnings })
}

fn multiplexed() -> String {
    "something between this program and the server shares out its connections (ProxySQL, MaxScale or the like), and a named lock belongs to one connection; connect to the server itself".to_owned()
}

/// Returns the three numbers of a version such as `10.11.19-MariaDB-…`, without an old prefix `5.5.5-`.
fn numbers(version: &str) -> [u32; 3] {
    let version = match version.strip_prefix("5.5.5-") {
        Some(rest) if rest.contains("MariaDB") => rest,
        _ => version,
    };
    let mut parts = version.split(['.', '-']).map(|part| part.parse().ok());
    // A word counts as a recent version: some vendors write `8.0.mysql_aurora.3.04.0`.
    let mut next = || parts.next().flatten().unwrap_or(u32::MAX);
    [next(), next(), next()]
}

/// Takes, inspects and frees a name of its own, in several statements: a multiplexer would change the
/// connection between two of them, and a missing permission shows.
fn rehearse(connection: &mut Connection, flavour: Flavour, limit: Duration) -> Result<(), Failure> {
    let row = connection.query("SELECT CONNECTION_ID() + 0", limit)?;
    let id = row.as_ref().and_then(|row| row.as_ref(0)).and_then(whole);
    // The server may count further than its greeting can say.
    let is_own = id.is_some_and(|id| id & u64::from(u32::MAX) == u64::from(connection.id()));
    if !is_own {
        return Err(Failure::Refused(Error::new(
            ErrorKind::Incompatible,
            multiplexed(),
        )));
    }
    connection.set_idle(flavour, IDLE, limit)?;
    let probe = format!("probe:{}:{:x}", std::process::id(), fastrand::u64(..));
    let name = EncodedName::new("lockkeeper", &probe);
    let crate::connection::LockReply::Granted(_) = connection.try_lock(&name, limit)? else {
        return Err(Failure::Refused(senseless()));
    };
    let held = connection.holds(std::slice::from_ref(&name), limit)?;
    let freed = connection.release(&name, limit)?;
    if held == [true] && freed {
        return Ok(());
    }
    Err(Failure::Refused(Error::new(
        ErrorKind::Incompatible,
        multiplexed(),
    )))
}

/// The default ttl in seconds, so that it is not set again for the first lock.
const IDLE: u64 = 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(version: &str, more: &[(&str, &str)]) -> Result<Found, Error> {
        let mut pairs = vec![("version", version), ("version_comment", "(Debian)")];
        pairs.extend_from_slice(more);
        judge_variables(&pairs)
    }

    #[test]
    fn servers_are_distinguished_and_old_ones_refused() {
        for (version, flavour) in [
            ("10.11.19-MariaDB-0+deb12u1", Flavour::MariaDb),
            ("5.5.5-10.0.38-MariaDB", Flavour::MariaDb),
            ("9.7.4-2", Flavour::MySql),
            ("5.7.5", Flavour::MySql),
            ("8.0.mysql_aurora.3.04.0", Flavour::MySql),
        ] {
            let found = judged(version, &[]).unwrap();
            assert_eq!(found.flavour, flavour, "{version}");
            assert!(found.warnings.is_empty(), "{version}");
        }
        for old in ["5.7.4", "5.6.51-log", "10.0.1-MariaDB", "5.5.68-MariaDB"] {
            let error = judged(old, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{old}");
            assert!(error.message().contains(old), "{error}");
        }
    }

    #[test]
    fn conditions_that_break_locks_are_refused_or_warned_of() {
        let error = judged("10.11.1-MariaDB", &[("wsrep_on", "ON")]).unwrap_err();
        assert!(error.message().contains("Galera"), "{error}");
        let pairs = [("version", "8.0.30"), ("version_comment", "(ProxySQL)")];
        let error = judge_variables(&pairs).unwrap_err();
        assert!(error.message().contains("ProxySQL"), "{error}");
        let found = judged("9.7.4", &[("super_read_only", "ON")]).unwrap();
        assert!(found.warnings[0].contains("read-only"), "{found:?}");
        let found = judged("9.7.4", &[("group_replication_group_name", "x")]).unwrap();
        assert!(found.warnings[0].contains("group"), "{found:?}");
    }
}
