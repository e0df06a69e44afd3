//! The stores that a campaign runs on, and how each is broken.

mod cluster;
mod consul;
mod etcd;
mod members;
mod quorum;
mod redis;
mod sentinel;
mod sessions;
mod sqlite;
mod tables;
mod zookeeper;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::{
    EtcdKind, MySqlKind, PostgresKind, Proxy, RedisCluster, RedisKind, StoreKind, TestServer,
    ZooKeeperKind,
};

use crate::args::{Args, StoreChoice};
use crate::faults::Lane;

/// A store that this program has started, and can break.
pub(crate) struct Store {
    /// The URLs that a worker opens, ready for `key=value`. The first leads to the store directly, and
    /// the second through the proxy, if there is one.
    pub(crate) urls: Vec<String>,
    /// A URL, ready for `key=value`, that only the faults of the store itself break, so that a guard is told of a loss
    /// at once. `None`: there is none.
    pub(crate) telling_url: Option<String>,
    /// How much longer than its ttl a lease may outlive its holder.
    pub(crate) grace: Duration,
    /// The faults of the store.
    pub(crate) faults: Vec<StoreFault>,
    network: Network,
    /// Empty if each process has a store of its own.
    servers: Vec<Arc<dyn TestServer>>,
}

/// The proxy that leads to the store.
enum Network {
    None,
    Proxy(Arc<Proxy>),
    /// That of the first node.
    Cluster(Arc<RedisCluster>),
}

impl Store {
    /// Makes a store without a proxy and without faults.
    fn new(urls: Vec<String>, servers: Vec<Arc<dyn TestServer>>) -> Self {
        Self {
            telling_url: urls.first().filter(|_| !servers.is_empty()).cloned(),
            urls,
            grace: Duration::from_secs(1),
            faults: Vec::new(),
            network: Network::None,
            servers,
        }
    }

    /// Makes a store of one server, and starts a proxy before it.
    fn behind_proxy(server: Arc<dyn TestServer>, settings: &ServerSettings) -> io::Result<Self> {
        let addr = server
            .single_addr()
            .ok_or(io::ErrorKind::AddrNotAvailable)?;
        let proxy = Proxy::new(addr)?;
        let urls = [addr, proxy.addr()].map(|it| settings.with_keys(&server.url_via(it)));
        Ok(Self {
            network: Network::Proxy(Arc::new(proxy)),
            ..Self::new(urls.into(), vec![server])
        })
    }

    /// Returns the proxy.
    pub(crate) fn proxy(&self) -> Option<&Proxy> {
        match &self.network {
            Network::None => None,
            Network::Proxy(proxy) => Some(proxy),
            Network::Cluster(nodes) => nodes.proxies().next(),
        }
    }

    /// Returns whether a lease ends with the connection on which it was granted.
    pub(crate) fn ends_with_connection(&self) -> bool {
        let mut facts = self.servers.iter().map(|server| server.facts());
        facts.any(|facts| facts.ends_with_connection)
    }

    /// Returns whether each process has a store of its own.
    pub(crate) fn is_in_process(&self) -> bool {
        self.servers.is_empty()
    }

    /// Returns the connections that are open, when no keeper is.
    pub(crate) fn connections(&self) -> io::Result<Vec<String>> {
        let each = self.servers.iter().map(|server| server.connections());
        Ok(each.collect::<io::Result<Vec<_>>>()?.concat())
    }

    /// Returns what is in the store, when all locks are free, apart from what it keeps for a later time.
    pub(crate) fn entries(&self) -> io::Result<Vec<String>> {
        let each = self.servers.iter().map(|server| server.leftovers());
        Ok(each.collect::<io::Result<Vec<_>>>()?.concat())
    }
}

type Act = Box<dyn Fn(&mut Lane<'_>) -> io::Result<()> + Send + Sync>;

/// A fault that a store has, and that restores what it broke.
pub(crate) struct StoreFault {
    pub(crate) kind: &'static str,
    pub(crate) act: Act,
}

impl StoreFault {
    pub(crate) fn new(
        kind: &'static str,
        act: impl Fn(&mut Lane<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let act = Box::new(act);
        Self { kind, act }
    }

    /// Stops a server for a while.
    fn stopped(kind: &'static str, server: &Arc<impl TestServer>) -> Self {
        let server = Arc::clone(server);
        Self::new(kind, move |lane| {
            server.stop()?;
            lane.spell();
            server.resume()
        })
    }

    /// Kills a server that then knows no lease any more, calls `empty`, and starts it after a while.
    fn restarted<S: TestServer>(
        kind: &'static str,
        server: &Arc<S>,
        settings: &ServerSettings,
        empty: fn(&S) -> io::Result<()>,
    ) -> Self {
        let (server, is_restart_safe) = (Arc::clone(server), settings.is_restart_safe);
        Self::new(kind, move |lane| {
            let kill = || {
                server.kill();
                Ok(())
            };
            match is_restart_safe {
                true => kill()?,
                false => lane.journal.forget(kill)?,
            }
            empty(&server)?;
            lane.spell();
            TestServer::restart(&*server)
        })
    }

    /// Makes a store forget all leases.
    fn wiped(kind: &'static str, server: &Arc<impl TestServer>) -> Self {
        let server = Arc::clone(server);
        Self::new(kind, move |lane| lane.journal.forget(|| server.wipe()))
    }
}

impl fmt::Debug for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreFault").field(&self.kind).finish()
    }
}

const REDIS: RedisKind = RedisKind::Redis7;
const POSTGRES: PostgresKind = PostgresKind::Postgres15;
/// The other version, 3.4.23, is not used. Its leader also ends leases of the next leader after a slow write to the disk:
/// <https://github.com/etcd-io/etcd/issues/15247>.
const ETCD: EtcdKind = EtcdKind::Etcd3_5;
const ZOOKEEPER: ZooKeeperKind = ZooKeeperKind::ZooKeeper3_8;

/// Returns why this store cannot be run on this machine, `None` if it can. In continuous integration a missing
/// server is a failure instead.
pub(crate) fn missing(choice: StoreChoice) -> Option<String> {
    match choice {
        StoreChoice::Redis | StoreChoice::Sentinel | StoreChoice::Cluster | StoreChoice::Quorum => {
            REDIS.ignored()
        }
        StoreChoice::MariaDb | StoreChoice::MariaDbTable => MySqlKind::MariaDb10.ignored(),
        StoreChoice::MySql | StoreChoice::MySqlTable => MySqlKind::MySql9.ignored(),
        StoreChoice::Postgres | StoreChoice::PostgresTable => POSTGRES.ignored(),
        StoreChoice::Etcd => ETCD.ignored(),
        StoreChoice::ZooKeeper => ZOOKEEPER.ignored(),
        StoreChoice::Consul => consul::CONSUL.ignored(),
        StoreChoice::Memory | StoreChoice::Sqlite | StoreChoice::All => None,
    }
}

/// Starts a store in a throw-away folder.
pub(crate) fn start(choice: StoreChoice, args: &Args) -> io::Result<Store> {
    let settings = &ServerSettings::of(args);
    match choice {
        // It lives and dies with its process, in which two keepers share the locks.
        StoreChoice::Memory => Ok(Store::new(vec!["memory:soak?".to_owned(); 2], Vec::new())),
        StoreChoice::Sqlite => sqlite::start(),
        StoreChoice::Redis => redis::start(settings),
        StoreChoice::Sentinel => sentinel::start(settings),
        StoreChoice::Cluster => cluster::start(args.names, settings),
        StoreChoice::Quorum => quorum::start(settings),
        StoreChoice::MariaDb => sessions::start_mysql(MySqlKind::MariaDb10, settings),
        StoreChoice::MySql => sessions::start_mysql(MySqlKind::MySql9, settings),
        StoreChoice::Postgres => sessions::start_postgres(settings),
        StoreChoice::Etcd => etcd::start(),
        StoreChoice::ZooKeeper => zookeeper::start(),
        StoreChoice::Consul => consul::start(args.ttl),
        StoreChoice::MariaDbTable => tables::start(StoreKind::MySqlTable(MySqlKind::MariaDb10)),
        StoreChoice::MySqlTable => tables::start(StoreKind::MySqlTable(MySqlKind::MySql9)),
        StoreChoice::PostgresTable => tables::start(StoreKind::PostgresTable(POSTGRES)),
        StoreChoice::All => Err(io::Error::other("`all` is not one store")),
    }
}

/// What all servers have in common.
struct ServerSettings {
    restart_grace: Option<Duration>,
    /// Whether a former holder has given up by its own clock before a restarted server grants anything.
    is_restart_safe: bool,
}

impl ServerSettings {
    fn of(args: &Args) -> Self {
        let restart_grace = args.restart_grace;
        Self {
            restart_grace,
            is_restart_safe: restart_grace.is_some_and(|grace| grace >= args.ttl),
        }
    }

    /// Adds keys to the URL of a server.
    fn with_keys(&self, url: &str) -> String {
        self.with_grace(with_timeouts(url))
    }

    /// Adds `restart_grace` to a URL.
    fn with_grace(&self, mut url: String) -> String {
        if let Some(grace) = self.restart_grace {
            url.push_str(&format!("restart_grace={}ms&", grace.as_millis()));
        }
        url
    }
}

/// Adds the keys after which a reply is lost, so that outages end within a round.
fn with_timeouts(url: &str) -> String {
    format!("{url}response_timeout=500ms&connect_timeout=500ms&")
}

/// How long a fault lasts beside which something must be granted.
const WATCHED: Duration = Duration::from_secs(3);

/// How often a fault looks for what it waits for.
const POLL: Duration = Duration::from_millis(1);
