//! The SQL. Names are bound where the statement can be prepared at no cost. Where they are pasted,
//! the type is [`EncodedName`]: the mysql crate lets a server run several statements at once
//! (CLIENT_MULTI_STATEMENTS) and offers no way to switch that off.

use std::time::Duration;

use crate::names::EncodedName;

/// The kind of server; the two bound a wait differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    MariaDb,
    MySql,
}

/// Tries to take a lock, prepared. Returns the epoch, 0 if the lock is held, NULL if the server was
/// disturbed.
pub(crate) const TRY: &str =
    "SELECT CASE GET_LOCK(?, 0) WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END";

/// Releases a lock, prepared. Returns 1, 0 if another session holds it, NULL if none does.
pub(crate) const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

/// The low 56 bits of UUID_SHORT: the server's start in seconds and a counter. The server's id is above
/// them.
pub(crate) const EPOCH_BITS: u64 = (1 << 56) - 1;

/// The longest wait of one statement: MySQL counts its milliseconds in 32 bits.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(1_000_000);

/// The longest that a server lets a session be idle: a year.
const LONGEST_IDLE: u64 = 31_536_000;

/// Returns the whole seconds that a session with a lease of `ttl` may be idle.
pub(crate) fn idle_seconds(ttl: Duration) -> u64 {
    let rounded = ttl
        .as_secs()
        .saturating_add(u64::from(ttl.subsec_nanos() > 0));
    rounded.clamp(1, LONGEST_IDLE)
}

/// Has the server end a session after so long without a request, and removes the server's limit for the
/// time of a statement.
pub(crate) fn set_idle(flavour: Flavour, seconds: u64) -> String {
    let unbounded = match flavour {
        Flavour::MariaDb => "max_statement_time",
        Flavour::MySql => "max_execution_time",
    };
    format!("SET SESSION wait_timeout = {seconds}, {unbounded} = 0")
}

/// Waits for a lock for at most `wait`, to the millisecond. Returns what [`TRY`] does; MySQL ends the
/// wait with error 3024.
pub(crate) fn wait(flavour: Flavour, name: &EncodedName, wait: Duration) -> String {
    let wait = wait.min(LONGEST_WAIT);
    let answer = "WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END";
    match flavour {
        Flavour::MariaDb => {
            let seconds = wait.as_secs_f64();
            format!("SELECT CASE GET_LOCK('{name}', {seconds:.6}) {answer}")
        }
        // MySQL rounds to whole seconds, so the statement gets the exact limit.
        Flavour::MySql => {
            let millis = wait.as_nanos().div_ceil(1_000_000).max(1);
            let seconds = wait.as_secs() + 2;
            format!(
                "SELECT /*+ MAX_EXECUTION_TIME({millis}) */ CASE GET_LOCK('{name}', {seconds}) {answer}"
            )
        }
    }
}

/// Returns 1 for each name that this session holds.
pub(crate) fn holds(names: &[EncodedName]) -> String {
    let mut query = String::from("SELECT ");
    for (place, name) in names.iter().enumerate() {
        let comma = if place == 0 { "" } else { ", " };
        query.push_str(comma);
        query.push_str("IS_USED_LOCK('");
        query.push_str(name);
        query.push_str("') = CONNECTION_ID()");
    }
    query
}

/// The identity of a session. A server that is started again counts its sessions from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionId {
    /// The number that `CONNECTION_ID()`, `IS_USED_LOCK()` and `KILL` use.
    pub(crate) id: u64,
    /// The second in which the server was started.
    pub(crate) start: u64,
}

impl SessionId {
    /// Compares the number that a connection knows with the one that the server reports: the server may
    /// count further than the 32 bits of its greeting.
    pub(crate) fn is(self, seen: Self) -> bool {
        self.start == seen.start && self.id == seen.id & u64::from(u32::MAX)
    }
}

/// Returns the milliseconds that are left of the second of the server's start, and that second.
pub(crate) const FIRST_SECOND: &str = "SELECT CEIL(1000 * GREATEST(0, CAST(UUID_SHORT() >> 24 & 4294967295 AS SIGNED) + 1 - UNIX_TIMESTAMP(SYSDATE(3)))), UUID_SHORT() >> 24 & 4294967295";

/// Returns the two numbers of the [`SessionId`] that holds a name, prepared; the first is NULL if none
/// does.
pub(crate) const HOLDER: &str = "SELECT IS_USED_LOCK(?), UUID_SHORT() >> 24 & 4294967295";

/// Returns the second in which the server was started.
pub(crate) const START: &str = "SELECT UUID_SHORT() >> 24 & 4294967295";

/// Ends the session if it holds the name, in one statement, since a connection soon holds another name.
/// If it does not hold the name, the reply is error 1094 (no such session). A KILL takes no parameters.
pub(crate) fn end_holder(name: &EncodedName, session: SessionId) -> String {
    let SessionId { id, start } = session;
    format!(
        "KILL CONNECTION IF(IS_USED_LOCK('{name}') = {id} AND UUID_SHORT() >> 24 & 4294967295 = {start}, {id}, 0)"
    )
}

/// Returns 1 while this session, of a server that was started then, holds the name, else 0; prepared.
pub(crate) const PROOF: &str =
    "SELECT COALESCE(IS_USED_LOCK(?) = ? AND UUID_SHORT() >> 24 & 4294967295 = ?, 0)";

/// [`PROOF`] with its values.
pub(crate) fn proof(name: &EncodedName, session: SessionId) -> String {
    let SessionId { id, start } = session;
    format!(
        "SELECT COALESCE(IS_USED_LOCK('{name}') = {id} AND UUID_SHORT() >> 24 & 4294967295 = {start}, 0)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_is_never_shorter_than_its_ttl() {
        for (millis, seconds) in [(100, 1), (1_000, 1), (1_001, 2), (30_000, 30)] {
            assert_eq!(idle_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(idle_seconds(Duration::MAX), LONGEST_IDLE);
    }

    #[test]
    fn no_wait_is_unbounded_or_negative() {
        let name = EncodedName::new("shop", "a");
        let none = wait(Flavour::MySql, &name, Duration::ZERO);
        assert!(none.contains("MAX_EXECUTION_TIME(1)"), "{none}");
        let long = wait(Flavour::MySql, &name, Duration::MAX);
        assert!(long.contains("MAX_EXECUTION_TIME(1000000000)"), "{long}");
        let short = wait(Flavour::MariaDb, &name, Duration::from_micros(1_500));
        assert!(short.contains("GET_LOCK('shop:a', 0.001500)"), "{short}");
    }
}
