//! The SQL. Names in it are encoded ones: none has a letter that would have to be quoted.

use std::time::Duration;

/// Which server it is: they differ in how a wait is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

/// One attempt, prepared: the epoch, 0 where somebody holds it, NULL where the server was disturbed.
pub(crate) const TRY: &str =
    "SELECT CASE GET_LOCK(?, 0) WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END";

/// Prepared: 1, 0 where another session holds it, NULL where none does.
pub(crate) const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

/// The low 56 bits of UUID_SHORT: the server's start in seconds and a counter. Above them is the
/// server's number.
pub(crate) const EPOCH_BITS: u64 = (1 << 56) - 1;

/// MySQL counts a wait's milliseconds in 32 bits. Nobody waits as long in one go.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1_000_000);

/// The longest that a server lets a session be idle: a year.
const LONGEST_IDLE: u64 = 31_536_000;

/// How many whole seconds a session may be idle that holds a lease of `ttl`.
pub(crate) fn idle_seconds(ttl: Duration) -> u64 {
    let rounded = ttl
        .as_secs()
        .saturating_add(u64::from(ttl.subsec_nanos() > 0));
    rounded.clamp(1, LONGEST_IDLE)
}

/// Lets the server end a session that was idle for so long; no statement of ours is ended by a
/// bound that the server has for statements.
pub(crate) fn set_idle(flavour: Flavour, seconds: u64) -> String {
    let unbounded = match flavour {
        Flavour::MariaDb => "max_statement_time",
        Flavour::MySql => "max_execution_time",
    };
    format!("SET SESSION wait_timeout = {seconds}, {unbounded} = 0")
}

/// Waits for at most `wait`, to the millisecond. Answers as [`TRY`]; MySQL ends it with error 3024.
pub(crate) fn wait(flavour: Flavour, name: &str, wait: Duration) -> String {
    let wait = wait.min(LONGEST_WAIT);
    let answer = "WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END";
    match flavour {
        Flavour::MariaDb => {
            let seconds = wait.as_secs_f64();
            format!("SELECT CASE GET_LOCK('{name}', {seconds:.6}) {answer}")
        }
        // It rounds to whole seconds: more of them, and a bound for the statement.
        Flavour::MySql => {
            let millis = wait.as_nanos().div_ceil(1_000_000).max(1);
            let seconds = wait.as_secs() + 2;
            format!(
                "SELECT /*+ MAX_EXECUTION_TIME({millis}) */ CASE GET_LOCK('{name}', {seconds}) {answer}"
            )
        }
    }
}

/// Whether this session holds each of them: 1 where it does.
pub(crate) fn holds<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut query = String::from("SELECT ");
    for (place, name) in names.enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        query.push_str(comma);
        query.push_str("IS_USED_LOCK('");
        query.push_str(name);
        query.push_str("') = CONNECTION_ID()");
    }
    query
}

/// An epoch without its counter is when the server was started, in seconds.
pub(crate) const START_SHIFT: u32 = 24;

/// How many milliseconds are left of the second in which the server was started.
pub(crate) const FIRST_SECOND: &str = "SELECT CEIL(1000 * GREATEST(0, CAST(UUID_SHORT() >> 24 & 4294967295 AS SIGNED) + 1 - UNIX_TIMESTAMP(SYSDATE(3))))";

/// 1 while the session with this number, of a server that was started then, holds the name, else 0.
/// A server that was started anew counts its sessions from the beginning.
pub(crate) const PROOF: &str =
    "SELECT COALESCE(IS_USED_LOCK(?) = ? AND UUID_SHORT() >> 24 & 4294967295 = ?, 0)";

/// The same with its values.
pub(crate) fn proof(name: &str, session: u32, start: u64) -> String {
    format!(
        "SELECT COALESCE(IS_USED_LOCK('{name}') = {session} AND UUID_SHORT() >> 24 & 4294967295 = {start}, 0)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_its_ttl() {
        for (millis, seconds) in [(100, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(idle_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(idle_seconds(Duration::MAX), LONGEST_IDLE);
    }

    #[test]
    fn no_wait_is_unbounded_or_negative() {
        let none = wait(Flavour::MySql, "a", Duration::ZERO);
        assert!(none.contains("MAX_EXECUTION_TIME(1)"), "{none}");
        let long = wait(Flavour::MySql, "a", Duration::MAX);
        assert!(long.contains("MAX_EXECUTION_TIME(1000000000)"), "{long}");
        let short = wait(Flavour::MariaDb, "a", Duration::from_micros(1_500));
        assert!(short.contains("GET_LOCK('a', 0.001500)"), "{short}");
    }
}
