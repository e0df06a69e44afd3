//! MySQL and MariaDB servers under test.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::{MySqlKind, MySqlOptions, MySqlServer, MySqlSession};
use crate::daemon::Daemon;
use crate::test_server::{Facts, TestServer};

/// Starts a server that lists its locks.
pub(crate) fn start(kind: MySqlKind) -> io::Result<Arc<dyn TestServer>> {
    let options = MySqlOptions::new().show_locks();
    Ok(Arc::new(MySqlServer::start(kind, &options)?))
}

impl MySqlServer {
    /// Returns the session that holds a name.
    fn holder(&self, namespace: &str, name: &str) -> io::Result<Option<u64>> {
        let sql = format!("SELECT IS_USED_LOCK('{namespace}:{name}')");
        let id = self.value(&sql)?;
        Ok(id.and_then(|id| id.parse().ok()))
    }
}

impl TestServer for MySqlServer {
    fn facts(&self) -> Facts {
        Facts::SESSIONS
    }

    fn url_at(&self, host: &str, tls: bool) -> String {
        let (user, password, database) = (Self::USER, Self::PASSWORD, Self::DATABASE);
        let keys = if tls { "tls=on&" } else { &self.key_setting() };
        format!("mysql://{user}:{password}@{host}/{database}?{keys}")
    }

    fn socket_url(&self) -> Option<String> {
        let (user, socket) = (Self::USER, self.socket());
        Some(format!("mysql:?socket={}&user={user}&", socket.display()))
    }

    fn processes(&self) -> Vec<&Daemon> {
        vec![self]
    }

    fn reset(&self) -> io::Result<()> {
        self.end_sessions()
    }

    /// Returns the locks that are held, and the sessions that wait for a lock.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let held = self.held()?.into_iter();
        let held = held.map(|(name, session)| format!("{name} held by {session}"));
        let waiting = self.sessions()?.into_iter().filter(waits);
        let waiting = waiting.map(|it| format!("{} waits: {:?}", it.id, it.statement));
        Ok(held.chain(waiting).collect())
    }

    fn connections(&self) -> io::Result<Vec<String>> {
        let sessions = self.sessions()?;
        Ok(sessions.iter().map(|it| format!("{it:?}")).collect())
    }

    fn holding_sessions(&self, namespace: &str, names: &[&str]) -> io::Result<BTreeSet<u64>> {
        let holders = names.iter().map(|name| self.holder(namespace, name));
        holders.filter_map(io::Result::transpose).collect()
    }

    fn waiting_sessions(&self, namespace: &str, name: &str) -> io::Result<BTreeSet<u64>> {
        let quoted = format!("'{namespace}:{name}'");
        let names_it = |it: &MySqlSession| {
            let statement = it.statement.as_deref().unwrap_or_default();
            statement.contains(&quoted)
        };
        let sessions = self.sessions()?.into_iter();
        let waiting = sessions.filter(|it| waits(it) && names_it(it));
        Ok(waiting.map(|it| it.id).collect())
    }

    fn kill_session(&self, session: u64) -> io::Result<()> {
        self.execute(&format!("KILL {session}"))
    }

    fn cancel_statement(&self, session: u64) -> io::Result<()> {
        self.execute(&format!("KILL QUERY {session}"))
    }
}

fn waits(session: &MySqlSession) -> bool {
    session.state == "User lock"
}
