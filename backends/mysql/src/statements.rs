//! The SQL that both kinds of server have. Names are bound where the statement can be prepared at no cost. Where they
//! are pasted, the type is [`EncodedName`]. The mysql crate lets a server run several statements at once
//! (CLIENT_MULTI_STATEMENTS) and offers no way to switch that off.
//!
//! The commit proof is one statement that other databases refuse by name: they skip the comment `/*! … */`, and
//! find no table `this_commit_proof_is_for_mysql_or_mariadb`.

use lockkeeper_core::{Proof, ProofValue};
use lockkeeper_sessions::{Requests, SessionLease};

use crate::connection::Connection;
use crate::dialect::Dialect;
use crate::names::EncodedName;

/// Tries to take a lock, prepared. Returns the epoch, 0 if the lock is held, NULL if the server was
/// disturbed.
pub(crate) const TRY: &str =
    "SELECT CASE GET_LOCK(?, 0) WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END";

/// Releases a lock, prepared. Returns 1, 0 if another session holds it, NULL if none does.
pub(crate) const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

/// The low 56 bits of UUID_SHORT: the server's start in seconds and a counter. The server's id is above
/// them.
pub(crate) const EPOCH_BITS: u64 = (1 << 56) - 1;

/// What is known of one run of the server, from its start to its end.
///
/// The second in `UUID_SHORT()` is that of the server's start, and one more after each 2^24 calls. It stays behind the
/// server's clock, and the next run starts with a later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// The second that was in `UUID_SHORT()` first.
    pub(crate) first: u64,
    /// The second that was in it last.
    pub(crate) last: u64,
    /// The second of the server's clock when a connection was opened, or what [`renewed`](Self::renewed) makes of it.
    pub(crate) until: u64,
}

impl Run {
    /// Returns the first second in which another run can start.
    pub(crate) fn end(self) -> u64 {
        self.until.max(self.last + 1)
    }

    /// Returns whether both are of the same run.
    pub(crate) fn is(self, other: Self) -> bool {
        self.first.max(other.first) < self.end().min(other.end())
    }

    /// Returns what a renewal on a connection of this run saw: the second in `UUID_SHORT()`, and that of the server's clock.
    ///
    /// Before the next renewal, a connection may be opened after another step of the counter, and is of this run. If the
    /// clock has not passed that second, another run can still start in it.
    pub(crate) fn renewed(self, last: u64, clock: u64) -> Self {
        let until = self.until.max(clock.min(last + 2));
        Self {
            last,
            until,
            ..self
        }
    }

    /// Adds what was seen after it. Another run takes its place.
    pub(crate) fn add(&mut self, seen: Self) {
        *self = match self.is(seen) {
            true => Self {
                first: self.first.min(seen.first),
                last: self.last.max(seen.last),
                until: self.until.max(seen.until),
            },
            false => seen,
        };
    }
}

/// The identity of a session. A server that is started again counts its sessions from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// The number that `CONNECTION_ID()`, `IS_USED_LOCK()` and `KILL` use.
    pub(crate) id: u64,
    pub(crate) run: Run,
}

impl SessionId {
    /// Compares the number that a connection knows with the one that the server reports: the server may
    /// count further than the 32 bits of its greeting.
    pub(crate) fn is(self, seen: Self) -> bool {
        self.run.is(seen.run) && self.id == seen.id & u64::from(u32::MAX)
    }
}

/// Returns the milliseconds since the beginning of the second of the server's start, that second, and two variables
/// that tell the kind of server. The first is 0 if the clock was set back over that second.
pub(crate) const GREETING: &str = "SELECT GREATEST(0, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000 - 1000 * CAST(UUID_SHORT() >> 24 & 4294967295 AS SIGNED)), UUID_SHORT() >> 24 & 4294967295, @@version, @@version_comment";

/// Returns the number of the session that holds a name, NULL if none does; prepared.
pub(crate) const HOLDER: &str = "SELECT IS_USED_LOCK(?)";

/// The second in `UUID_SHORT()`, and that of the server's clock: see [`Run`].
const SECONDS: &str = "UUID_SHORT() >> 24 & 4294967295,UNIX_TIMESTAMP()";

/// Returns a column for each request: what [`RELEASE`] or [`TRY`] returns, or 1 if this session holds a name to check.
/// With checks, the two of [`SECONDS`] follow.
pub(crate) fn several(requests: &Requests<EncodedName>) -> String {
    let releases = requests.releases.iter();
    let releases = releases.map(|name| format!("RELEASE_LOCK('{name}')"));
    let attempts = requests.attempts.iter().map(|name| {
        format!("CASE GET_LOCK('{name}',0) WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END")
    });
    let checks = requests.checks.iter();
    let checks = checks.map(|name| format!("IS_USED_LOCK('{name}')=CONNECTION_ID()"));
    let seconds = (!requests.checks.is_empty()).then(|| SECONDS.to_owned());
    let columns = releases.chain(attempts).chain(checks).chain(seconds);
    format!("SELECT {}", columns.collect::<Vec<_>>().join(","))
}

/// Ends the session if it holds the name, in one statement, since a connection soon holds another name.
/// If it does not hold the name, the reply is error 1094 (no such session). A KILL takes no parameters.
pub(crate) fn end_holder(name: &EncodedName, id: u64) -> String {
    format!("KILL CONNECTION IF(IS_USED_LOCK('{name}') = {id}, {id}, 0)")
}

/// Returns -1 if the second in `UUID_SHORT()` is outside of two bounds, else 1 while that session holds the name, else 0.
///
/// Other databases skip the comment, which these servers run. There the alias is a table that does not
/// exist, and its name is the text of their error.
pub(crate) const PROOF: &str = "SELECT held FROM /*!(SELECT CASE WHEN (UUID_SHORT() >> 24 & 4294967295) NOT BETWEEN ? AND ? THEN -1 WHEN IS_USED_LOCK(?) = ? THEN 1 ELSE 0 END AS held) AS*/ this_commit_proof_is_for_mysql_or_mariadb";

/// Returns the proof of a lease, by what is known of the server that runs.
///
/// Renewals tell how far the counter has come, and one step more may follow. Wider bounds would take in other servers,
/// with sessions of the same numbers.
pub(crate) fn proof(lease: &SessionLease<Connection>, dialect: Dialect, known: Run) -> Proof {
    let (SessionId { id, run }, name) = (lease.session(), lease.name());
    let granted = lease.epoch() >> 24;
    let seen = if known.is(run) { known.last } else { granted };
    let last = granted.max(seen) + 1;
    let [from, to] = [granted, last].map(|second| second.to_string());
    let values = [from, to, format!("'{name}'"), id.to_string()];
    let set = |sql: String, value: &String| sql.replacen('?', value, 1);
    Proof {
        dialect: dialect.name(),
        sql: values.iter().fold(PROOF.to_owned(), set),
        statement: PROOF,
        params: vec![
            ProofValue::Integer(granted.cast_signed()),
            ProofValue::Integer(last.cast_signed()),
            ProofValue::Text(name.to_string()),
            ProofValue::Integer(id.cast_signed()),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(second: u64, until: u64) -> Run {
        let (first, last) = (second, second);
        Run { first, last, until }
    }

    #[test]
    fn session_is_known_after_steps_of_the_counter() {
        let session = |run| SessionId { id: 7, run };
        // A connection that is opened 3 s after the start, and one that is opened after three steps.
        let (early, late) = (opened(1_000, 1_003), opened(1_003, 2_000));
        let mut known = Run::default();
        known.add(early);
        known.add(early.renewed(1_003, 1_003));
        known.add(late);
        for run in [early, late] {
            assert!(session(run).is(session(known)), "{run:?}");
        }
        known.add(opened(2_000, 2_001));
        assert_eq!(known, opened(2_000, 2_001));
        for run in [early, late] {
            assert!(!session(run).is(session(known)), "{run:?}");
        }
    }

    #[test]
    fn connection_after_a_step_is_of_the_same_run_if_the_clock_is_ahead() {
        let early = opened(1_000, 1_003);
        for (clock, step, is_same) in [
            (9_000, 1_004, true),
            (1_005, 1_004, true),
            // Another run may have started in that second, or in one of the later ones.
            (1_004, 1_004, false),
            (9_000, 1_005, false),
        ] {
            let mut known = early;
            known.add(early.renewed(1_003, clock));
            assert_eq!(known.is(opened(step, 9_000)), is_same, "{clock} {step}");
        }
    }
}
