//! ZooKeeper under test: a single server, or an ensemble of three.

use std::io;
use std::sync::Arc;

use super::{ZooKeeperEnsemble, ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer};
use crate::daemon::Daemon;
use crate::register::{RegisterEntry, encoded};
use crate::test_server::{EndFault, Facts, TestServer};

pub(crate) fn start(kind: ZooKeeperKind) -> io::Result<Arc<dyn TestServer>> {
    let options = ZooKeeperOptions::new();
    Ok(Arc::new(ZooKeeperServer::start(kind, &options)?))
}

pub(crate) fn start_ensemble(kind: ZooKeeperKind) -> io::Result<Arc<dyn TestServer>> {
    let options = ZooKeeperOptions::new();
    Ok(Arc::new(ZooKeeperEnsemble::start(kind, &options)?))
}

const FACTS: Facts = Facts {
    is_kept_by_restart: true,
    has_pool: false,
    // The entry of the lock.
    lock_request: "lock%2Fa",
    part_of_reply: 7,
    // A thread replaces a connection, asks each member twice, and another thread keeps the session.
    outage_connections: 7,
    ..Facts::ROWS
};

/// All nodes of locks are below this one.
const ROOT: &str = "/lockkeeper";

impl ZooKeeperServer {
    /// Returns the entry of a name, which is free if there is none.
    fn entry(&self, namespace: &str, name: &str) -> io::Result<RegisterEntry> {
        let [namespace, name] = [namespace, name].map(node_name);
        let path = format!("{ROOT}/{namespace}/entries/lock%2F{name}");
        let value = self.client()?.get(&path)?;
        Ok(entry(&value.unwrap_or_default()))
    }
}

/// Reads the value of an entry's node: after the number of the entry, it is JSON.
fn entry(value: &str) -> RegisterEntry {
    RegisterEntry::read(value.get(10..).unwrap_or_default())
}

fn node_name(text: &str) -> String {
    encoded(text, b"-_", |byte| format!("%{byte:02X}"))
}

impl TestServer for ZooKeeperServer {
    fn facts(&self) -> Facts {
        FACTS
    }

    fn url_at(&self, host: &str, tls: bool) -> String {
        let scheme = if tls { "zookeepers" } else { "zookeeper" };
        format!("{scheme}://{host}/?")
    }

    fn processes(&self) -> Vec<&Daemon> {
        vec![self]
    }

    fn wipe(&self) -> io::Result<()> {
        self.client()?.delete(ROOT)
    }

    /// Kills the server, which has its data when it starts again.
    fn cut_off(self: Arc<Self>) -> io::Result<EndFault> {
        TestServer::kill(&*self);
        Ok(Box::new(move || self.restart()))
    }

    /// Deletes the node of the holder's session, which ends all leases of its process.
    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        let entry = self.entry(namespace, name)?;
        let (session, namespace) = (entry.session(name)?, node_name(namespace));
        self.client()?
            .delete(&format!("{ROOT}/{namespace}/sessions/s-{session}"))
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        Ok(self.entry(namespace, name)?.waiters())
    }

    /// Returns the entries that are not free.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut client = self.client()?;
        let mut left = Vec::new();
        for namespace in client.children(ROOT)? {
            let folder = format!("{ROOT}/{namespace}/entries");
            for name in client.children(&folder)? {
                let value = client.get(&format!("{folder}/{name}"))?;
                if !entry(&value.unwrap_or_default()).is_free() {
                    left.push(name);
                }
            }
        }
        Ok(left)
    }
}
