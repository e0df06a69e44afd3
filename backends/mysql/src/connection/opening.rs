//! Checks, on opening, whether a server and any proxy before it keep named locks correctly.

use std::collections::HashMap;
use std::time::Duration;

use lockkeeper_core::{Error, Finding};
use lockkeeper_remote::{Failure, nothing_granted, senseless};
use lockkeeper_sessions::{Requests, SessionConnection};
use mysql::Row;

use crate::connection::Connection;
use crate::failure::{incompatible, multiplexed};
use crate::names::EncodedName;
use crate::statements::dialect::Dialect;
use crate::statements::{number, text};

/// Lists the relevant variables. A server that lacks one leaves it out.
const VARIABLES: &str = "SHOW SESSION VARIABLES WHERE Variable_name IN ('version', 'version_comment', 'wsrep_on', 'read_only', 'super_read_only', 'group_replication_group_name')";

/// The topic of findings about the server's place among others.
pub(crate) const TOPOLOGY: &str = "topology";

/// Inspects the server, within `limit`, and runs once every statement that a lock needs.
/// Returns the conditions that may break locks.
pub(crate) fn inspect(connection: &mut Connection, limit: Duration) -> Result<Vec<Finding>, Error> {
    connection.link.set_limit(limit);
    let warnings = warnings(connection).map_err(nothing_granted)?;
    rehearse(connection).map_err(nothing_granted)?;
    Ok(warnings)
}

/// Returns the conditions that may break locks.
///
/// # Errors
/// [`Failure::Refused`] for a server that does not keep named locks.
pub(crate) fn warnings(connection: &mut Connection) -> Result<Vec<Finding>, Failure> {
    let rows = connection.rows(VARIABLES)?;
    let pair = |row: &Row| Some((text(row, 0)?, text(row, 1)?));
    judge(&rows.iter().filter_map(pair).collect()).map_err(Failure::Refused)
}

fn judge(variables: &HashMap<String, String>) -> Result<Vec<Finding>, Error> {
    let value = |name: &str| variables.get(name).map_or("", String::as_str);
    let is_on = |name: &str| matches!(value(name), "ON" | "1");
    let (version, comment) = (value("version"), value("version_comment"));
    if comment.contains("ProxySQL") || version.contains("ProxySQL") {
        return Err(multiplexed());
    }
    if numbers(version) < Dialect::of(version, comment).oldest_version() {
        return Err(incompatible(&format!(
            "version {version} of the server lets a session hold one named lock only, which it frees without a word for a second one, or has no limit for the time of a statement; MySQL from 5.7.8 and MariaDB from 10.1.1 on are good"
        )));
    }
    if is_on("wsrep_on") {
        return Err(incompatible(
            "this server is a node of a Galera cluster, and named locks are each node's own: two nodes would grant the same name; lock on a server that is not in the cluster",
        ));
    }
    let mut warnings = Vec::new();
    if is_on("read_only") || is_on("super_read_only") {
        warnings.push(Finding::warning(
            TOPOLOGY,
            "this server is read-only, so probably a replica",
            "its locks and its primary's never meet",
            "have all programs lock on the same server",
        ));
    }
    if !value("group_replication_group_name").is_empty() {
        warnings.push(Finding::warning(
            TOPOLOGY,
            "this server is a member of a replication group",
            "named locks are each member's own",
            "have all programs lock on the same member, and expect no lock to survive its failure",
        ));
    }
    Ok(warnings)
}

/// Returns the three numbers of a version such as `10.11.19-MariaDB-…`, without an old prefix `5.5.5-`.
pub(crate) fn numbers(version: &str) -> [u32; 3] {
    let version = match version.strip_prefix("5.5.5-") {
        Some(rest) if rest.contains("MariaDB") => rest,
        _ => version,
    };
    let mut parts = version.split(['.', '-']).map(|part| part.parse().ok());
    // A word counts as a recent version: some vendors write `8.0.mysql_aurora.3.04.0`.
    let mut next = || parts.next().flatten().unwrap_or(u32::MAX);
    [next(), next(), next()]
}

/// Takes, inspects and frees a name that no lock has, in several statements. A multiplexer would
/// change the session between two of them, and a missing permission shows.
fn rehearse(connection: &mut Connection) -> Result<(), Failure> {
    let row = connection.query("SELECT CONNECTION_ID() + 0")?;
    connection.check_id(number(&row, 0))?;
    connection.set_idle(IDLE)?;
    let probe = format!("probe:{}:{:x}", std::process::id(), fastrand::u64(..));
    let name = EncodedName::new("lockkeeper", &probe);
    let name = || vec![name.clone()];
    let tried = connection.ask(&Requests::attempts(name()))?.attempted;
    if tried.into_iter().next().transpose()?.flatten().is_none() {
        return Err(Failure::Refused(senseless()));
    }
    let held = connection.ask(&Requests::checks(name()))?.held;
    let released = connection.ask(&Requests::releases(name()))?.released;
    if held == [true] && released == [true] {
        return Ok(());
    }
    Err(Failure::Refused(multiplexed()))
}

/// The default ttl, so that it is not set again for the first lock.
const IDLE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::ErrorKind;

    fn judged(variables: &[(&str, &str)]) -> Result<Vec<Finding>, Error> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        judge(&variables.iter().map(owned).collect())
    }

    #[test]
    fn servers_are_distinguished_and_old_ones_refused() {
        for (version, dialect) in [
            ("10.11.19-MariaDB-0+deb12u1", Dialect::MariaDb),
            ("5.5.5-10.1.48-MariaDB", Dialect::MariaDb),
            ("9.7.4-2", Dialect::MySql),
            ("5.7.8", Dialect::MySql),
            ("8.0.mysql_aurora.3.04.0", Dialect::MySql),
        ] {
            assert_eq!(Dialect::of(version, "(Debian)"), dialect, "{version}");
            assert_eq!(judged(&[("version", version)]).unwrap(), []);
        }
        for old in ["5.7.7", "5.6.51-log", "10.0.38-MariaDB", "5.5.68-MariaDB"] {
            let error = judged(&[("version", old)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{old}");
            assert!(error.message().contains(old), "{error}");
        }
    }

    #[test]
    fn conditions_that_break_locks_are_refused_or_warned_of() {
        for (variable, value, word) in [
            ("wsrep_on", "ON", "Galera"),
            ("version_comment", "(ProxySQL)", "ProxySQL"),
        ] {
            let error = judged(&[("version", "10.11.1"), (variable, value)]).unwrap_err();
            assert!(error.message().contains(word), "{error}");
        }
        for (variable, value, word) in [
            ("super_read_only", "ON", "read-only"),
            ("group_replication_group_name", "x", "group"),
        ] {
            let warnings = judged(&[("version", "9.7.4"), (variable, value)]).unwrap();
            assert!(warnings[0].what.contains(word), "{warnings:?}");
        }
    }
}
