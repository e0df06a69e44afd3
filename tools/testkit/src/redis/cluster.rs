//! Nodes of a Redis Cluster.

use std::io;
use std::ops::Deref;
use std::time::Duration;

use super::proxied::{ProxiedServers, wait};
use super::{RedisKind, RedisOptions, RedisServer, Reply};

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// Three primaries, each with as many replicas as wanted. Each node is behind a proxy, whose address is the only one that
/// replicas and clients know. The nodes watch each other on ports of their own, without a proxy.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: ProxiedServers,
}

impl RedisCluster {
    /// The number of primaries. At first they are nodes 0, 1 and 2, each with a third of the slots. Node 3 is a
    /// replica of node 0, and so on.
    pub const PRIMARIES: usize = 3;

    /// Starts the nodes, and returns when all of them see the whole cluster. A primary is replaced when it was silent for
    /// `node_timeout`, as the majority of the primaries sees it.
    ///
    /// # Errors
    /// There is no such server on this machine, or one did not start.
    pub fn start(
        kind: RedisKind,
        replicas_each: usize,
        node_timeout: Duration,
    ) -> io::Result<Self> {
        let count = Self::PRIMARIES * (1 + replicas_each);
        let nodes = ProxiedServers::start(kind, count, |port| {
            RedisOptions::new()
                .cluster_node(node_timeout)
                .config("cluster-announce-ip", ["127.0.0.1"])
                .config("cluster-announce-port", [port])
                // Replicas that are slow to begin with take over all the same.
                .config("cluster-replica-validity-factor", ["0"])
        })?;
        let cluster = Self { nodes };
        cluster.create()?;
        Ok(cluster)
    }

    fn create(&self) -> io::Result<()> {
        let first = self.server(0);
        for (at, (server, proxy)) in self.pairs().enumerate() {
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?;
            if at < Self::PRIMARIES {
                let bound = |at: usize| usize::from(SLOTS) * at / Self::PRIMARIES;
                let slots = (bound(at)..bound(at + 1)).map(|slot| slot.to_string());
                let add = ["CLUSTER", "ADDSLOTS"].map(str::to_owned);
                server.command(&add.into_iter().chain(slots).collect::<Vec<_>>())?;
            }
            let bus = server.bus_port().unwrap_or_default().to_string();
            let port = proxy.addr().port().to_string();
            first.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        self.wait("nodes that know each other", |cluster| {
            let count = cluster.count().to_string();
            cluster.all_say("cluster_known_nodes", &count)
        })?;
        for at in Self::PRIMARIES..self.count() {
            let primary = self.id(at % Self::PRIMARIES)?;
            self.wait("a replica", |cluster| {
                let replicate = cluster
                    .server(at)
                    .command(&["CLUSTER", "REPLICATE", &primary]);
                Ok(replicate.is_ok())
            })?;
        }
        self.wait_until_healthy()
    }

    /// Makes the nodes announce their own ports, so that clients bypass the proxies.
    ///
    /// # Errors
    /// A node does not answer.
    pub fn announce_servers(&self) -> io::Result<()> {
        for server in self.servers() {
            let port = server.addr().port().to_string();
            let set = ["CONFIG", "SET", "cluster-announce-port", &port];
            server.command(&set)?;
        }
        self.wait("nodes that know the ports", |cluster| {
            let named = |asked: &RedisServer| {
                let nodes = asked.command(&["CLUSTER", "NODES"])?.text();
                let nodes = nodes.unwrap_or_default();
                let is_named = |it: &RedisServer| nodes.contains(&format!(" {}@", it.addr()));
                Ok::<_, io::Error>(cluster.servers().all(is_named))
            };
            let mut asked = cluster.servers();
            asked.try_fold(true, |so_far, it| Ok(so_far && named(it)?))
        })
    }

    /// Returns `redis+cluster://HOST,HOST`, with the addresses of all nodes.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts = self.proxies().map(|proxy| proxy.addr().to_string());
        let hosts: Vec<_> = hosts.collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Returns the name by which nodes know a node.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn id(&self, at: usize) -> io::Result<String> {
        let id = self.server(at).command(&["CLUSTER", "MYID"])?;
        id.text()
            .ok_or_else(|| io::Error::other("CLUSTER MYID says nothing"))
    }

    /// Returns the slot of a key, and the number of the node that owns it, as another node than `except` sees it. Waits until
    /// one does: during a fail-over the slot may have no owner.
    ///
    /// # Errors
    /// None does within 30 s, or no node answers.
    pub fn owner(&self, key: &str, except: Option<usize>) -> io::Result<(u16, usize)> {
        let mut found = None;
        self.wait("an owner of the slot", |cluster| {
            found = cluster.find_owner(key, except)?;
            Ok(found.is_some())
        })?;
        found.ok_or_else(|| io::Error::other("no node owns the slot"))
    }

    fn find_owner(&self, key: &str, except: Option<usize>) -> io::Result<Option<(u16, usize)>> {
        let asked = (0..self.count()).find(|at| Some(*at) != except);
        let asked = self.server(asked.unwrap_or_default());
        let slot = asked.command(&["CLUSTER", "KEYSLOT", key])?.int();
        let slot = slot.and_then(|slot| u16::try_from(slot).ok());
        let ranges = asked.command(&["CLUSTER", "SLOTS"])?;
        Ok(ranges.items().iter().find_map(|range| {
            let [start, end, primary, ..] = range.items() else {
                return None;
            };
            let range = start.int()?..=end.int()?;
            let port = primary.items().get(1)?.int()?;
            let at = self.named(port)?;
            range.contains(&i64::from(slot?)).then_some((slot?, at))
        }))
    }

    /// Waits until another node than `former` owns the slot of a key, and returns its number.
    ///
    /// # Errors
    /// None does within 30 s, or no node answers.
    pub fn wait_for_fail_over(&self, key: &str, former: usize) -> io::Result<usize> {
        let mut owner = former;
        self.wait("another primary", |cluster| {
            owner = cluster.owner(key, Some(former))?.1;
            Ok(owner != former)
        })?;
        Ok(owner)
    }

    /// Begins to move a slot: its new owner imports it, and its owner gives away the keys that [`RedisCluster::move_key`] is
    /// called for.
    ///
    /// # Errors
    /// A node does not answer, or refuses.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let slot = slot.to_string();
        let (source, target) = (self.id(from)?, self.id(to)?);
        let import = ["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source];
        self.server(to).command(&import)?;
        let migrate = ["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target];
        self.server(from).command(&migrate).map(drop)
    }

    /// Moves a key of a slot that is being moved.
    ///
    /// # Errors
    /// A node does not answer, or there is no such key.
    pub fn move_key(&self, key: &str, from: usize, to: usize) -> io::Result<()> {
        match self.migrate(key, from, to)?.as_deref() {
            Some("OK") => Ok(()),
            other => Err(io::Error::other(format!("MIGRATE {key} says {other:?}"))),
        }
    }

    fn migrate(&self, key: &str, from: usize, to: usize) -> io::Result<Option<String>> {
        let port = self.server(to).addr().port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        Ok(self.server(from).command(&migrate)?.text())
    }

    /// Moves the keys that are left in a slot, and makes the other node its owner.
    ///
    /// # Errors
    /// A node does not answer, or refuses.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) -> io::Result<()> {
        let text = slot.to_string();
        let keys = ["CLUSTER", "GETKEYSINSLOT", &text, "1000"];
        let keys = self.server(from).command(&keys)?;
        for key in keys.items().iter().filter_map(Reply::text) {
            // It may have ended meanwhile.
            self.migrate(&key, from, to)?;
        }
        let owner = self.id(to)?;
        for at in [to, from] {
            let assign = ["CLUSTER", "SETSLOT", &text, "NODE", &owner];
            self.server(at).command(&assign)?;
        }
        Ok(())
    }

    /// Waits until all nodes that run see a whole cluster, with all replicas in touch with their primaries.
    ///
    /// # Errors
    /// They do not within 30 s.
    pub fn wait_until_healthy(&self) -> io::Result<()> {
        self.wait("a whole cluster", |cluster| {
            let are_linked = cluster.running().all(|server| {
                let info = server.info("replication").unwrap_or_default();
                info.get("role").map(String::as_str) == Some("master")
                    || info.get("master_link_status").map(String::as_str) == Some("up")
            });
            Ok(are_linked && cluster.all_say("cluster_state", "ok")?)
        })
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.servers().filter(|server| server.pid().is_some())
    }

    /// Returns whether all nodes that run say this in CLUSTER INFO.
    fn all_say(&self, field: &str, value: &str) -> io::Result<bool> {
        let line = format!("{field}:{value}");
        self.running().try_fold(true, |so_far, server| {
            let info = server.command(&["CLUSTER", "INFO"])?.text();
            let says = info.is_some_and(|info| info.lines().any(|it| it == line));
            Ok(so_far && says)
        })
    }

    fn wait(
        &self,
        what: &str,
        mut condition: impl FnMut(&Self) -> io::Result<bool>,
    ) -> io::Result<()> {
        wait(what, self.servers(), || condition(self))
    }
}

impl Deref for RedisCluster {
    type Target = ProxiedServers;

    fn deref(&self) -> &ProxiedServers {
        &self.nodes
    }
}
