//! The SQL of locks. All values are bound. PostgreSQL evaluates the columns of a statement from left to right.
//!
//! The sessions of this library look up names only in `pg_catalog`. In a transaction of the application, objects of
//! other users may come first. So its statements name the schema of each function, operator, type and table.
//!
//! Several locks are one prepared statement over two arrays: a text for each number of locks would be prepared for each.

use std::borrow::Cow;
use std::sync::LazyLock;
use std::time::Duration;

use crate::names::LockKey;
use lockkeeper_core::{Proof, ProofValue, TransactionLockSql};

pub(crate) mod epoch;

use epoch::EPOCH;

/// The first half of the keys of [`SessionId::mark`].
pub(crate) const MARKS: i32 = i32::from_be_bytes(*b"lock");

/// The first half of the key by which a session says which namespace its locks are of; a hash of that is the second one.
pub(crate) const NAMESPACES: i32 = MARKS + 1;

/// The identity of a session. A server gives the number of a session again after its end. So each session holds a
/// lock of its own that tells it from the next one, and that every user sees in `pg_locks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId {
    /// The number that `pg_locks` shows, and that ends the session.
    pub(crate) pid: i32,
    /// The second half of the key of the session's lock; [`MARKS`] is the first.
    pub(crate) mark: i32,
}

/// The kind of database, as people write it.
pub(crate) const DIALECT: &str = "PostgreSQL";

/// The statements about one lock, whose key is `$1`.
pub(crate) struct Verbs {
    /// Tries to take it. Returns the epoch, or 0 if another session holds it or waits for it.
    pub(crate) attempt: String,
    /// Waits for it for `$2` ms. Returns the epoch in the third column.
    pub(crate) wait: String,
    /// Releases it. Returns 1 if the session held it, else 0.
    pub(crate) release: String,
}

static EXCLUSIVE: LazyLock<Verbs> = LazyLock::new(|| Verbs::new(""));
static SHARED: LazyLock<Verbs> = LazyLock::new(|| Verbs::new("_shared"));

impl Verbs {
    fn new(mode: &str) -> Self {
        Self {
            attempt: format!(
                "SELECT CASE WHEN pg_try_advisory_lock{mode}($1::int8) THEN {EPOCH} ELSE 0 END"
            ),
            // The server reads the setting when the wait begins, and has the former one after the statement.
            wait: format!(
                "SELECT set_config('lock_timeout', $2::int8::text, true), \
                 pg_advisory_lock{mode}($1::int8), {EPOCH}"
            ),
            release: format!("SELECT pg_advisory_unlock{mode}($1::int8)::int4"),
        }
    }

    /// Returns the statements for a lock in its mode.
    pub(crate) fn of(key: &LockKey) -> &'static Self {
        match key.is_shared {
            true => &SHARED,
            false => &EXCLUSIVE,
        }
    }
}

/// What [`SEVERAL`] does with a lock: 0 to release it, 2 to try it, and 1 more if it is shared.
pub(crate) fn steps(name: &LockKey) -> [i64; 2] {
    let shared = i64::from(name.is_shared);
    [shared, 2 + shared]
}

/// Releases and tries locks in the order of two arrays: of [`steps`], and of the keys. Returns a row for each, as the
/// statement about one lock does.
pub(crate) static SEVERAL: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT CASE step \
         WHEN 0 THEN pg_advisory_unlock(key)::int4 \
         WHEN 1 THEN pg_advisory_unlock_shared(key)::int4 \
         WHEN 2 THEN CASE WHEN pg_try_advisory_lock(key) THEN {EPOCH} ELSE 0 END \
         ELSE CASE WHEN pg_try_advisory_lock_shared(key) THEN {EPOCH} ELSE 0 END \
         END FROM unnest($1::int4[], $2::int8[]) AS steps (step, key)"
    )
});

/// The condition for rows of `pg_locks` on the key `$1`.
const IS_KEY: &str = "locktype = 'advisory' AND objsubid = 1 \
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
    AND classid::int8 = ($1::int8 >> 32 & 4294967295) AND objid::int8 = ($1::int8 & 4294967295)";

/// Sets the time after which the server ends the idle session.
pub(crate) const SET_IDLE: &str =
    "SELECT set_config('idle_session_timeout', $1::int8::text, false)";

/// Releases the lock if this session holds it, and returns 1 then. Without a look, the server would log a warning.
pub(crate) static RELEASE_IF_HELD: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT CASE mode WHEN 'ShareLock' THEN pg_advisory_unlock_shared($1::int8) \
         ELSE pg_advisory_unlock($1::int8) END::int4 \
         FROM pg_locks WHERE {IS_KEY} AND pid = pg_backend_pid() AND granted"
    )
});

/// Returns the number and the mark of each session that holds the key or waits for it exclusively. The mark is 0
/// for a transaction of an application.
pub(crate) static HOLDERS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks), \
         marks AS (SELECT pid, objid::int8 AS mark FROM locks \
         WHERE locktype = 'advisory' AND objsubid = 2 AND classid = {MARKS}) \
         SELECT pid, coalesce(mark, 0) FROM locks LEFT JOIN marks USING (pid) \
         WHERE {IS_KEY} AND (granted OR mode = 'ExclusiveLock') AND pid <> pg_backend_pid()"
    )
});

/// Ends the session with the number `$2` and the mark `$3` if it holds the key, and does not wait for its end. Returns no
/// row if it does not hold the key.
pub(crate) static END_HOLDER: LazyLock<String> = LazyLock::new(|| {
    format!(
        "WITH locks AS MATERIALIZED (SELECT * FROM pg_locks WHERE pid = $2::int4 AND granted) \
         SELECT pg_terminate_backend(pid) FROM locks WHERE {IS_KEY} AND EXISTS (SELECT FROM locks \
         WHERE locktype = 'advisory' AND objsubid = 2 AND classid = {MARKS} AND objid::int8 = $3::int8)"
    )
});

/// The server, the database and whether it is a replica, as one text. Locks are those of a database. A copy of the
/// server's files has the same identity.
pub(crate) const IDENTITY: &str = "pg_catalog.concat((SELECT system_identifier FROM pg_catalog.pg_control_system()), ' ', \
    (SELECT oid FROM pg_catalog.pg_database WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database()), ' ', \
    pg_catalog.pg_is_in_recovery())";

/// Returns the statements by which a transaction of the application takes a lock, in the database with this identity.
/// `last` is the largest epoch that was granted.
///
/// The block of the wait is a subtransaction. If the wait ends without the lock, PostgreSQL undoes the block with its
/// setting, and the transaction goes on. If the clock was set back during the wait, the block is undone as well. The second
/// attempt grants nothing then, and the transaction would keep the lock.
pub(crate) fn transaction_lock(
    key: &LockKey,
    wait: Duration,
    identity: &str,
    last: u64,
) -> TransactionLockSql {
    let key = key.number();
    let millis = wait.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
    TransactionLockSql {
        dialect: DIALECT,
        attempt: format!(
            "SELECT CASE WHEN {IDENTITY} OPERATOR(pg_catalog.<>) '{identity}' THEN -1 WHEN {EPOCH} OPERATOR(pg_catalog.<=) {last} THEN -2 \
             WHEN pg_catalog.pg_try_advisory_xact_lock({key}) THEN {EPOCH} ELSE 0 END AS held"
        ),
        wait: format!(
            "DO $wait$ DECLARE before pg_catalog.text := pg_catalog.current_setting('lock_timeout'); BEGIN \
             PERFORM pg_catalog.set_config('lock_timeout', '{millis}', true); \
             PERFORM pg_catalog.pg_advisory_xact_lock({key}); \
             IF {EPOCH} OPERATOR(pg_catalog.<=) {last} THEN RAISE lock_not_available; END IF; \
             PERFORM pg_catalog.set_config('lock_timeout', before, true); \
             EXCEPTION WHEN lock_not_available THEN NULL; END $wait$"
        ),
    }
}

/// Returns 1 while the session holds the key, else 0. The marks tell sessions apart, since the server gives their
/// numbers again.
///
/// With the values in it, the statement has no form that another database cannot read: its error then names
/// `pg_catalog.pg_locks`.
static PROOF: LazyLock<String> = LazyLock::new(|| {
    let sql = "SELECT pg_catalog.count(*) AS held FROM pg_catalog.pg_locks AS it JOIN pg_catalog.pg_locks AS mark \
        ON it.pid = mark.pid AND it.database = mark.database WHERE it.locktype = 'advisory' AND it.objsubid = 1 \
        AND it.granted AND it.classid = $1::int8 AND it.objid = $2::int8 AND it.pid = $3::int8 \
        AND mark.locktype = 'advisory' AND mark.objsubid = 2 AND mark.granted \
        AND mark.classid = $4::int8 AND mark.objid = $5::int8";
    sql.replace('=', "OPERATOR(pg_catalog.=)")
        .replace("int8", "pg_catalog.int8")
});

/// Returns the proof of a lease.
pub(crate) fn proof(session: SessionId, key: &LockKey) -> Proof {
    let SessionId { pid, mark } = session;
    let [classid, objid] = key.halves().map(u64::cast_signed);
    let values = [
        classid,
        objid,
        pid.into(),
        MARKS.into(),
        mark.cast_unsigned().into(),
    ];
    let set = |sql: String, (at, value): (i32, &i64)| {
        sql.replacen(&format!("${at}::pg_catalog.int8"), &value.to_string(), 1)
    };
    Proof {
        dialect: DIALECT,
        sql: (1..).zip(&values).fold(PROOF.clone(), set),
        statement: Cow::Borrowed(&PROOF),
        params: values.map(ProofValue::Integer).to_vec(),
        fits: None,
    }
}
