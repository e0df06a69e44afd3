//! etcd under test: a single member, or a cluster of three.

use std::io;
use std::sync::Arc;

use super::{EtcdCluster, EtcdKey, EtcdKind, EtcdOptions, EtcdServer};
use crate::daemon::Daemon;
use crate::test_server::{EndFault, Facts, TestServer, not_held};

pub(crate) fn start(kind: EtcdKind) -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(EtcdServer::start(kind, &EtcdOptions::new())?))
}

pub(crate) fn start_cluster(kind: EtcdKind) -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(EtcdCluster::start(kind, &EtcdOptions::new())?))
}

const FACTS: Facts = Facts {
    is_kept_by_restart: true,
    min_ttl: 2,
    // `lockkeeper/default/l/` in base64.
    lock_request: "bG9ja2tlZXBlci9kZWZhdWx0L2wv",
    // The request for a lease comes before that for the lock, and each is repeated on a new connection.
    outage_connections: 5,
    ..Facts::ROWS
};

impl EtcdServer {
    /// Returns the keys of a name's requests that are held, or that wait.
    fn requests(&self, namespace: &str, name: &str, is_held: bool) -> io::Result<Vec<EtcdKey>> {
        let mut keys = self.keys(&format!("lockkeeper/{namespace}/l/{name}/"))?;
        let state = format!(r#""held":{is_held}"#);
        keys.retain(|key| key.value.contains(&state));
        Ok(keys)
    }
}

impl TestServer for EtcdServer {
    fn facts(&self) -> Facts {
        FACTS
    }

    fn url_at(&self, host: &str, tls: bool) -> String {
        let scheme = if tls { "etcds" } else { "etcd" };
        format!("{scheme}://{host}/?")
    }

    fn processes(&self) -> Vec<&Daemon> {
        vec![self]
    }

    fn wipe(&self) -> io::Result<()> {
        self.delete("lockkeeper/").map(drop)
    }

    /// Kills the server, which has its data when it starts again.
    fn cut_off(self: Arc<Self>) -> io::Result<EndFault> {
        TestServer::kill(&*self);
        Ok(Box::new(move || self.restart()))
    }

    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        let held = self.requests(namespace, name, true)?;
        let held = held.first().ok_or_else(|| not_held(name))?;
        match self.delete_key(&held.key)? {
            1 => Ok(()),
            _ => Err(not_held(name)),
        }
    }

    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        Ok(self.requests(namespace, name, false)?.len())
    }

    /// Returns all keys but those that a namespace has once.
    fn leftovers(&self) -> io::Result<Vec<String>> {
        let keys = self.keys("lockkeeper/")?.into_iter().map(|it| it.key);
        Ok(keys.filter(|key| key.matches('/').count() > 2).collect())
    }
}
