//! ZooKeeper under test: a single server, or an ensemble of three.

use std::io;
use std::sync::Arc;

use serde_json::Value;

use super::{ZooKeeperEnsemble, ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer};
use crate::daemon::Daemon;
use crate::test_server::{EndFault, Facts, TestServer, not_held};

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
    /// Returns a part of the entry of a name: `l` has its leases, and `q` the requests that wait.
    fn parts(&self, namespace: &str, name: &str, part: &str) -> io::Result<Vec<Value>> {
        let [namespace, name] = [namespace, name].map(encoded);
        let path = format!("{ROOT}/{namespace}/entries/lock%2F{name}");
        let entry = self.client()?.get(&path)?;
        Ok(parts(&entry.unwrap_or_default(), part))
    }
}

fn parts(entry: &str, part: &str) -> Vec<Value> {
    // After the number of the entry, it is JSON.
    let entry = entry.get(10..).unwrap_or_default();
    let entry: Value = serde_json::from_str(entry).unwrap_or_default();
    let parts = entry.get(part).and_then(Value::as_array);
    parts.cloned().unwrap_or_default()
}

/// Encodes a text as the names of nodes have it.
fn encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'-' | b'_' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
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
        let leases = self.parts(namespace, name, "l")?;
        let session = leases.first().and_then(|lease| lease.get("s")?.as_str());
        let session = session.ok_or_else(|| not_held(name))?;
        let namespace = encoded(namespace);
        self.client()?
            .delete(&format!("{ROOT}/{namespace}/sessions/s-{session}"))
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        Ok(self.parts(namespace, name, "q")?.len())
    }

    /// Returns the entries that are not free.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut client = self.client()?;
        let mut left = Vec::new();
        for namespace in client.children(ROOT)? {
            let folder = format!("{ROOT}/{namespace}/entries");
            for name in client.children(&folder)? {
                let entry = client.get(&format!("{folder}/{name}"))?.unwrap_or_default();
                if ["l", "q"]
                    .iter()
                    .any(|part| !parts(&entry, part).is_empty())
                {
                    left.push(name);
                }
            }
        }
        Ok(left)
    }
}

/// The leader is asked.
impl TestServer for ZooKeeperEnsemble {
    fn facts(&self) -> Facts {
        FACTS
    }

    fn url(&self) -> String {
        format!("{}/?", self.url(0))
    }

    fn processes(&self) -> Vec<&Daemon> {
        self.members().iter().map(|member| &**member).collect()
    }

    fn restart(&self) -> io::Result<()> {
        self.restart_all()
    }

    fn wipe(&self) -> io::Result<()> {
        self.asked()?.wipe()
    }

    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        self.asked()?.end_lease(namespace, name)
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        self.asked()?.waiters(namespace, name)
    }

    fn leftovers(&self) -> io::Result<Vec<String>> {
        self.asked()?.leftovers()
    }
}

impl ZooKeeperEnsemble {
    fn asked(&self) -> io::Result<&ZooKeeperServer> {
        let leader = self.members().get(self.leader(&[])?);
        leader.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
