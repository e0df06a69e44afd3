//! What MySQL and MariaDB do differently.

use std::time::Duration;

use crate::names::EncodedName;

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    MariaDb,
    MySql,
}

/// The longest wait of one statement: MySQL counts its milliseconds in 32 bits.
const LONGEST_WAIT: Duration = Duration::from_secs(1_000_000);

impl Dialect {
    /// Returns the kind of a server with these variables `version` and `version_comment`.
    pub(crate) fn of(version: &str, comment: &str) -> Self {
        if version.contains("MariaDB") || comment.contains("MariaDB") {
            Self::MariaDb
        } else {
            Self::MySql
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::MariaDb => "MariaDB",
            Self::MySql => "MySQL",
        }
    }

    /// Returns the first version in which a session can hold several names, and a statement has a limit of time.
    pub(crate) fn oldest_version(self) -> [u32; 3] {
        match self {
            Self::MariaDb => [10, 1, 1],
            Self::MySql => [5, 7, 8],
        }
    }

    /// Returns the statement that makes the server end a session after `seconds` without a request. It also removes the
    /// server's limit for the time of a statement.
    pub(crate) fn set_idle(self, seconds: u64) -> String {
        let limit = self.statement_limit();
        format!("SET SESSION wait_timeout = {seconds}, {limit} = 0")
    }

    /// Returns the variable of the server's limit for the time of a statement.
    pub(crate) fn statement_limit(self) -> &'static str {
        match self {
            Self::MariaDb => "max_statement_time",
            Self::MySql => "max_execution_time",
        }
    }

    /// Returns the statement that waits for a lock for at most `wait`, to the millisecond. Its column is that of
    /// [`TRY`](super::TRY). MySQL 9.7.4 replied 0 at the limit; error 3024 counts as the same.
    pub(crate) fn wait(self, name: &EncodedName, wait: Duration) -> String {
        let wait = wait.min(LONGEST_WAIT);
        let (hint, seconds) = match self {
            Self::MariaDb => (String::new(), format!("{:.6}", wait.as_secs_f64())),
            // MySQL rounds to whole seconds, so the statement gets the exact limit.
            Self::MySql => {
                let millis = wait.as_nanos().div_ceil(1_000_000).max(1);
                let seconds = wait.as_secs() + 2;
                (
                    format!("/*+ MAX_EXECUTION_TIME({millis}) */"),
                    seconds.to_string(),
                )
            }
        };
        format!(
            "SELECT {hint} CASE GET_LOCK('{name}', {seconds}) WHEN 1 THEN UUID_SHORT() WHEN 0 THEN 0 END"
        )
    }

    /// Returns the statement that lists all named locks with the session of each, and what to do where a
    /// user may not run it.
    pub(crate) fn list(self) -> (&'static str, &'static str) {
        match self {
            Self::MariaDb => (
                "SELECT table_schema, thread_id FROM information_schema.metadata_lock_info WHERE lock_type = 'User lock'",
                "MariaDB does not list named locks without its plugin; run INSTALL SONAME 'metadata_lock_info' once as an administrator, or ask for one name",
            ),
            Self::MySql => (
                "SELECT object_name, processlist_id FROM performance_schema.metadata_locks JOIN performance_schema.threads ON owner_thread_id = thread_id WHERE object_type = 'USER LEVEL LOCK' AND lock_status = 'GRANTED'",
                "the server does not list named locks to this user; GRANT SELECT ON performance_schema.* to it (and enable the instrument wait/lock/metadata/sql/mdl on MySQL 5.7), or ask for one name",
            ),
        }
    }

    /// Returns the statement that asks whether the server keeps a list of named locks: 1 means yes. `None`
    /// if it always does.
    pub(crate) fn is_listing(self) -> Option<&'static str> {
        (self == Self::MySql).then_some("SELECT enabled = 'YES' FROM performance_schema.setup_instruments WHERE name = 'wait/lock/metadata/sql/mdl'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_unbounded_or_negative() {
        let name = EncodedName::new("shop", "a");
        for (dialect, wait, part) in [
            (Dialect::MySql, Duration::ZERO, "MAX_EXECUTION_TIME(1)"),
            (Dialect::MySql, Duration::MAX, "_TIME(1000000000)"),
            (
                Dialect::MariaDb,
                Duration::from_micros(1_500),
                ", 0.001500)",
            ),
        ] {
            let sql = dialect.wait(&name, wait);
            assert!(
                sql.contains(part) && sql.contains("GET_LOCK('shop:a', "),
                "{sql}"
            );
        }
    }
}
