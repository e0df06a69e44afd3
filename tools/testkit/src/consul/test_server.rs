//! Consul under test: a single server, or a cluster of three.

use std::io;
use std::sync::Arc;

use super::{ConsulCluster, ConsulKind, ConsulOptions, ConsulServer};
use crate::daemon::Daemon;
use crate::register::{RegisterEntry, encoded};
use crate::test_server::{EndFault, Facts, TestServer};

pub(crate) fn start(kind: ConsulKind) -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(ConsulServer::start(kind, &ConsulOptions::new())?))
}

pub(crate) fn start_cluster(kind: ConsulKind) -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(ConsulCluster::start(kind, &ConsulOptions::new())?))
}

const FACTS: Facts = Facts {
    is_kept_by_restart: true,
    lock_request: "lockkeeper/default/lock/a.",
    // The request for a session comes before that for the lock, and each is repeated on a new connection.
    outage_connections: 5,
    ..Facts::ROWS
};

impl ConsulServer {
    /// Returns the entry of a name, which is free if there is none.
    fn entry(&self, namespace: &str, name: &str) -> io::Result<RegisterEntry> {
        let encoded = |text| encoded(text, b"-", |byte| format!("_{byte:02x}"));
        let key = format!("lockkeeper/{}/lock/{}.", encoded(namespace), encoded(name));
        let found = self.keys(&key)?;
        let value = found.first().map_or("", |it| &it.value);
        Ok(RegisterEntry::read(value))
    }
}

impl TestServer for ConsulServer {
    fn facts(&self) -> Facts {
        FACTS
    }

    fn url_at(&self, host: &str, tls: bool) -> String {
        let scheme = if tls { "consuls" } else { "consul" };
        format!("{scheme}://{host}/?")
    }

    fn processes(&self) -> Vec<&Daemon> {
        vec![self]
    }

    fn wipe(&self) -> io::Result<()> {
        self.delete("lockkeeper/")
    }

    /// Kills the server, which has its data when it starts again.
    fn cut_off(self: Arc<Self>) -> io::Result<EndFault> {
        TestServer::kill(&*self);
        Ok(Box::new(move || self.restart()))
    }

    /// Ends the session, and with it all leases of its process.
    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        self.destroy(self.entry(namespace, name)?.session(name)?)
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        Ok(self.entry(namespace, name)?.waiters())
    }

    /// Returns the entries that are not free.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut entries = self.keys("lockkeeper/")?;
        entries.retain(|it| !RegisterEntry::read(&it.value).is_free());
        Ok(entries.into_iter().map(|it| it.key).collect())
    }
}
