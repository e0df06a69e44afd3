//! Redis servers, a server with a sentinel, and a cluster under test.

use std::io;
use std::sync::Arc;

use super::{RedisCluster, SentinelSet};
use super::{RedisKind, RedisOptions, RedisServer, Reply};
use crate::daemon::{self, Daemon};
use crate::test_server::{EndFault, Facts, TestServer, not_held};

/// A time after which nothing is replaced.
const NEVER: std::time::Duration = std::time::Duration::from_secs(86_400);

pub(crate) fn start(kind: RedisKind) -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(RedisServer::start(kind, &RedisOptions::new())?))
}

/// Starts a server, and a sentinel that names it and never replaces it.
pub(crate) fn start_with_sentinel(kind: RedisKind) -> io::Result<Arc<dyn TestServer>> {
    Ok(Arc::new(SentinelSet::alone(kind, NEVER)?))
}

/// Starts three primaries that nothing replaces. Clients pass by their proxies: the threads of a proxy would count as
/// those of a keeper that does not end.
pub(crate) fn start_cluster(kind: RedisKind) -> io::Result<Arc<dyn TestServer>> {
    let cluster = RedisCluster::start(kind, 0, NEVER)?;
    cluster.announce_servers()?;
    Ok(Arc::new(cluster))
}

/// Returns all keys but those of the last epoch of a namespace.
fn keys_of_locks(server: &RedisServer) -> io::Result<Vec<String>> {
    let keys = server.command(&["KEYS", "*"])?;
    let keys = keys.items().iter().filter_map(Reply::text);
    let is_last_epoch = |key: &str| {
        let of_server = key.strip_prefix("lockkeeper:{");
        let of_bucket = key.strip_prefix("lockkeeper:bucket:{");
        let of_server = of_server.and_then(|rest| rest.strip_suffix("}:epoch"));
        let of_bucket = of_bucket.and_then(|rest| rest.strip_suffix("}:epoch"));
        of_server.is_some_and(|namespace| !namespace.contains(':'))
            || of_bucket.is_some_and(|bucket| !bucket.contains('{'))
    };
    Ok(keys.filter(|key| !is_last_epoch(key)).collect())
}

/// Returns the keys of a name: that of its lock, and that of its permits.
fn keys_of(server: &RedisServer, namespace: &str, name: &str) -> io::Result<Vec<String>> {
    let on_server = format!("lockkeeper:{{{namespace}:{name}}}");
    // The bucket is in the key, between the namespace and the name.
    let (in_bucket, end) = (
        format!("lockkeeper:bucket:{{{namespace}:"),
        format!("{{{name}}}"),
    );
    let is_of_name = |key: &String| {
        let key = key.strip_suffix(":permits").unwrap_or(key);
        key == on_server || key.starts_with(&in_bucket) && key.ends_with(&end)
    };
    let keys = keys_of_locks(server)?.into_iter();
    Ok(keys.filter(is_of_name).collect())
}

/// Returns whether a server takes writes.
fn is_primary(server: &RedisServer) -> bool {
    let info = server.info("replication").unwrap_or_default();
    info.get("role").is_some_and(|role| role == "master")
}

/// One server, or several that are one store together.
trait RedisServers: Send + Sync + 'static {
    fn members(&self) -> Vec<&RedisServer>;

    /// Returns the URL of the store, ready for `key=value`.
    fn store_url(&self) -> String;

    /// Returns the server, if it is one alone.
    fn alone(&self) -> Option<&RedisServer> {
        None
    }

    /// Returns the members that take writes, or the server alone.
    fn primaries(&self) -> impl Iterator<Item = &RedisServer> {
        let is_alone = self.alone().is_some();
        let members = self.members().into_iter();
        members.filter(move |it| is_alone || is_primary(it))
    }
}

impl RedisServers for RedisServer {
    fn members(&self) -> Vec<&RedisServer> {
        vec![self]
    }

    fn store_url(&self) -> String {
        format!("{}/?", self.url())
    }

    fn alone(&self) -> Option<&RedisServer> {
        Some(self)
    }
}

/// The sentinels run on, whatever a test does to the servers.
impl RedisServers for SentinelSet {
    fn members(&self) -> Vec<&RedisServer> {
        self.servers().collect()
    }

    fn store_url(&self) -> String {
        format!("{}?", self.url())
    }
}

impl RedisServers for RedisCluster {
    fn members(&self) -> Vec<&RedisServer> {
        self.servers().collect()
    }

    fn store_url(&self) -> String {
        format!("{}/?", self.url())
    }
}

impl<S: RedisServers> TestServer for S {
    fn facts(&self) -> Facts {
        Facts {
            lock_request: "EVALSHA",
            ..Facts::ROWS
        }
    }

    fn url(&self) -> String {
        self.store_url()
    }

    fn url_at(&self, host: &str, tls: bool) -> String {
        let scheme = if tls { "rediss" } else { "redis" };
        let sign_in = self.alone().map(RedisServer::sign_in);
        format!("{scheme}://{}{host}/?", sign_in.unwrap_or_default())
    }

    fn socket_url(&self) -> Option<String> {
        let socket = self.alone()?.socket();
        Some(format!("unix:{}?", socket.display()))
    }

    fn processes(&self) -> Vec<&Daemon> {
        self.members().into_iter().map(|it| &**it).collect()
    }

    fn wipe(&self) -> io::Result<()> {
        let mut primaries = self.primaries();
        primaries.try_for_each(|server| server.command(&["FLUSHALL"]).map(drop))
    }

    /// Closes the ports of the servers, and all connections. Only their unix sockets remain.
    fn cut_off(self: Arc<Self>) -> io::Result<EndFault> {
        for server in self.members() {
            let mut client = server.client()?;
            client.command(&["CONFIG", "SET", "port", "0"])?;
            for of in ["pubsub", "normal"] {
                client.command(&["CLIENT", "KILL", "TYPE", of])?;
            }
        }
        Ok(Box::new(move || {
            self.members().into_iter().try_for_each(|server| {
                let port = server.addr().port().to_string();
                let set = ["CONFIG", "SET", "port", &port];
                // Another process may have the port for a moment.
                daemon::retry_on_former_port(|| {
                    let set = server.command(&set).map(drop);
                    set.map_err(|error| io::Error::new(io::ErrorKind::AddrInUse, error))
                })
            })
        }))
    }

    fn end_lease(&self, namespace: &str, name: &str) -> io::Result<()> {
        for server in self.primaries() {
            for key in keys_of(server, namespace, name)? {
                if server.command(&["DEL", &key])?.int() == Some(1) {
                    return Ok(());
                }
            }
        }
        Err(not_held(name))
    }

    /// Waiters are in a sorted set with a score below zero.
    fn waiters(&self, namespace: &str, name: &str) -> io::Result<usize> {
        let mut count = 0;
        for server in self.primaries() {
            for key in keys_of(server, namespace, name)? {
                let mut client = server.client()?;
                if client.command(&["TYPE", &key])?.text().as_deref() == Some("zset") {
                    let waiting = client.command(&["ZCOUNT", &key, "-inf", "(0"])?.int();
                    count += waiting.and_then(|it| usize::try_from(it).ok()).unwrap_or(0);
                }
            }
        }
        Ok(count)
    }

    fn leftovers(&self) -> io::Result<Vec<String>> {
        let left: io::Result<Vec<_>> = self.members().into_iter().map(keys_of_locks).collect();
        Ok(left?.concat())
    }

    /// Returns the connections but those that ask for them. Nodes and sentinels are connected to each other, so only those
    /// of a server alone are known.
    fn connections(&self) -> io::Result<Vec<String>> {
        let Some(server) = self.alone() else {
            return Ok(Vec::new());
        };
        let mut client = server.client()?;
        let own = client.command(&["CLIENT", "ID"])?.int().unwrap_or_default();
        let own = format!("id={own} ");
        let list = client.command(&["CLIENT", "LIST"])?;
        let list = list.text().unwrap_or_default();
        let others = list.lines().filter(|line| !line.starts_with(&own));
        Ok(others.map(str::to_owned).collect())
    }
}
