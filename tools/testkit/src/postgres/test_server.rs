//! PostgreSQL servers under test.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::{PostgresKind, PostgresOptions, PostgresServer};
use crate::daemon::Daemon;
use crate::test_server::{Facts, TestServer};

pub(crate) fn start(kind: PostgresKind) -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(PostgresServer::start(
        kind,
        &PostgresOptions::new(),
    )?))
}

impl PostgresServer {
    /// Returns the sessions whose locks of the names are as `state` says: `granted` or `NOT granted`.
    fn sessions_of(
        &self,
        namespace: &str,
        names: &[&str],
        state: &str,
    ) -> io::Result<BTreeSet<u64>> {
        let names = names.join("'), ('");
        let hash = format!(
            "sha256(convert_to('{namespace}', 'UTF8') || '\\xff'::bytea || convert_to(name, 'UTF8'))"
        );
        let rows = self.rows(&format!(
            "SELECT pid FROM (VALUES ('{names}')) AS names (name), pg_locks \
             WHERE locktype = 'advisory' AND objsubid = 1 AND {state} \
             AND classid::int8 << 32 | objid::int8 \
             = ('x' || encode({hash}, 'hex'))::bit(64)::int8 & 9223372036854775807"
        ))?;
        let pids = rows.iter().flatten().map(|pid| pid.parse());
        pids.collect::<Result<_, _>>().map_err(io::Error::other)
    }
}

impl TestServer for PostgresServer {
    fn facts(&self) -> Facts {
        Facts::SESSIONS
    }

    fn url_at(&self, host: &str, tls: bool) -> String {
        let (user, password, database) = (Self::USER, Self::PASSWORD, Self::DATABASE);
        let keys = if tls { "tls=on&" } else { "" };
        format!("postgres://{user}:{password}@{host}/{database}?{keys}")
    }

    fn socket_url(&self) -> Option<String> {
        let (user, socket) = (Self::USER, self.socket());
        Some(format!(
            "postgres:?socket={}&user={user}&",
            socket.display()
        ))
    }

    fn processes(&self) -> Vec<&Daemon> {
        vec![self]
    }

    fn reset(&self) -> io::Result<()> {
        self.end_sessions()
    }

    /// Returns the locks that are held or waited for.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let rows = self.rows(
            "SELECT pid, CASE WHEN granted THEN 'holds' ELSE 'waits for' END, classid, objid, mode FROM pg_locks \
             WHERE locktype = 'advisory' AND objsubid = 1",
        )?;
        Ok(rows.iter().map(|row| row.join(" ")).collect())
    }

    fn connections(&self) -> io::Result<Vec<String>> {
        let sessions = self.sessions()?;
        Ok(sessions.iter().map(|it| format!("session {it}")).collect())
    }

    fn holding_sessions(&self, namespace: &str, names: &[&str]) -> io::Result<BTreeSet<u64>> {
        self.sessions_of(namespace, names, "granted")
    }

    fn waiting_sessions(&self, namespace: &str, name: &str) -> io::Result<BTreeSet<u64>> {
        self.sessions_of(namespace, &[name], "NOT granted")
    }

    fn kill_session(&self, session: u64) -> io::Result<()> {
        self.execute(&format!("SELECT pg_terminate_backend({session}, 10000)"))
    }

    fn cancel_statement(&self, session: u64) -> io::Result<()> {
        self.execute(&format!("SELECT pg_cancel_backend({session})"))
    }
}
