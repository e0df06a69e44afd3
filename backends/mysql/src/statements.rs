//! The SQL that both kinds of server have. Names are bound where the statement can be prepared at no cost. Where they
//! are pasted, the type is [`EncodedName`]. The mysql crate lets a server run several statements at once
//! (CLIENT_MULTI_STATEMENTS) and offers no way to switch that off.
//!
//! The commit proof is one statement that other databases refuse by name: they skip the comment `/*! … */`, and
//! find no table `this_commit_proof_is_for_mysql_or_mariadb`.

use lockkeeper_core::{Proof, ProofValue};
use lockkeeper_sessions::Requests;
use mysql::{Row, Value};

use crate::names::EncodedName;

pub(crate) mod dialect;
pub(crate) mod run;

use dialect::Dialect;
use run::{Run, SessionId};

/// Tries to take a lock, prepared. Returns the epoch, 0 if the lock is held, NULL if the server was
/// disturbed.
pub(crate) const TRY: &str =
    "SELECT CASE GET_LOCK(?, 0) WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END";

/// Releases a lock, prepared. Returns 1, 0 if another session holds it, NULL if none does.
pub(crate) const RELEASE: &str = "SELECT RELEASE_LOCK(?)";

/// The low 56 bits of UUID_SHORT: the server's start in seconds and a counter. The server's id is above
/// them.
pub(crate) const EPOCH_BITS: u64 = (1 << 56) - 1;

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
pub(crate) fn proof(
    (session, name, epoch): (SessionId, &EncodedName, u64),
    dialect: Dialect,
    known: Run,
) -> Proof {
    let SessionId { id, run } = session;
    let granted = epoch >> 24;
    let seen = if known.is(run) { known.last } else { granted };
    let last = granted.max(seen) + 1;
    let [from, to] = [granted, last].map(|second| second.to_string());
    let values = [from, to, format!("'{name}'"), id.to_string()];
    let set = |sql: String, value: &String| sql.replacen('?', value, 1);
    Proof {
        dialect: dialect.name(),
        sql: values.iter().fold(PROOF.to_owned(), set),
        statement: PROOF.into(),
        params: vec![
            ProofValue::Integer(granted.cast_signed()),
            ProofValue::Integer(last.cast_signed()),
            ProofValue::Text(name.to_string()),
            ProofValue::Integer(id.cast_signed()),
        ],
        fits: None,
    }
}

/// Returns a number of a row, for which servers use several types; `None` for NULL.
pub(crate) fn number(row: &Row, at: usize) -> Option<u64> {
    match row.as_ref(at)? {
        Value::UInt(number) => Some(*number),
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::Bytes(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Returns a text of a row.
pub(crate) fn text(row: &Row, at: usize) -> Option<String> {
    match row.as_ref(at)? {
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    }
}
