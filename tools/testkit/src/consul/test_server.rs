//! Consul under test: a single server, or a cluster of three.

use std::io;
use std::sync::Arc;

use serde_json::Value;

use super::{ConsulCluster, ConsulKind, ConsulOptions, ConsulServer};
use crate::daemon::Daemon;
use crate::test_server::{EndFault, Facts, TestServer, not_held};

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
    /// Returns the values of the entry of a name at `at`: `l` for its leases, and `q` for the requests that wait.
    fn parts(&self, namespace: &str, name: &str, at: &str) -> io::Result<Vec<Value>> {
        let [namespace, name] = [namespace, name].map(encoded);
        let entries = self.keys(&format!("lockkeeper/{namespace}/lock/{name}."))?;
        let values = entries.iter().map(|it| parts(&it.value, at));
        Ok(values.flatten().collect())
    }
}

fn parts(value: &str, at: &str) -> Vec<Value> {
    let value: Value = serde_json::from_str(value).unwrap_or_default();
    let parts = value.get(at).and_then(Value::as_array);
    parts.cloned().unwrap_or_default()
}

/// Encodes a text as the keys have it.
fn encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'-' => "-".to_owned(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("_{byte:02x}"),
    });
    encoded.collect()
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
        let leases = self.parts(namespace, name, "l")?;
        let session = leases.first().and_then(|lease| lease.get("s")?.as_str());
        self.destroy(session.ok_or_else(|| not_held(name))?)
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        Ok(self.parts(namespace, name, "q")?.len())
    }

    /// Returns the entries that are not free.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let mut entries = self.keys("lockkeeper/")?;
        entries.retain(|it| ["l", "q"].iter().any(|at| !parts(&it.value, at).is_empty()));
        Ok(entries.into_iter().map(|it| it.key).collect())
    }
}

/// The leader is asked.
impl TestServer for ConsulCluster {
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

impl ConsulCluster {
    fn asked(&self) -> io::Result<&ConsulServer> {
        let leader = self.members().get(self.leader(&[])?);
        leader.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}
