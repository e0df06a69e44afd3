//! Servers that sentinels watch.

use std::io;
use std::ops::Deref;
use std::time::Duration;

use super::proxied::{ProxiedServers, wait};
use super::{RedisKind, RedisOptions, RedisServer, Reply};

/// A primary and its replicas, and sentinels that watch them under the name `mymaster`. Each of the servers is
/// behind a proxy, whose address is the only one that sentinels, replicas and clients know.
#[derive(Debug)]
pub struct SentinelSet {
    /// Declared first: sentinels that outlived the primary would start a fail-over.
    sentinels: Vec<RedisServer>,
    servers: ProxiedServers,
}

impl SentinelSet {
    /// Starts them, and returns when all know of each other. Server 0 is the primary. It is replaced when it
    /// was silent for `down_after`, as the majority of the sentinels sees it.
    ///
    /// # Errors
    /// There is no such server on this machine, or one did not start.
    pub fn start(
        kind: RedisKind,
        replicas: usize,
        sentinels: usize,
        down_after: Duration,
    ) -> io::Result<Self> {
        let servers = ProxiedServers::start(kind, 1 + replicas, |port| {
            RedisOptions::new()
                .config("replica-announce-ip", ["127.0.0.1"])
                .config("replica-announce-port", [port])
        })?;
        let mut set = Self {
            sentinels: Vec::new(),
            servers,
        };
        let primary = set.proxy(0).addr();
        for at in 1..=replicas {
            let replica = set.server(at);
            replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()])?;
            replica.wait_for_sync()?;
        }
        let quorum = sentinels / 2 + 1;
        let options = RedisOptions::new();
        let options = options.sentinel_of(set.server(0), primary, quorum, down_after);
        for _ in 0..sentinels {
            set.sentinels.push(RedisServer::start(kind, &options)?);
        }
        set.wait_until_healthy()?;
        Ok(set)
    }

    /// Starts a server, and a sentinel that names it by its own address and does not replace it before `down_after`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn alone(kind: RedisKind, down_after: Duration) -> io::Result<Self> {
        let servers = ProxiedServers::start(kind, 1, |_| RedisOptions::new())?;
        let server = servers.server(0);
        let options = RedisOptions::new().sentinel_of(server, server.addr(), 1, down_after);
        Ok(Self {
            sentinels: vec![RedisServer::start(kind, &options)?],
            servers,
        })
    }

    /// Returns `redis+sentinel://HOST,HOST/mymaster`.
    #[must_use]
    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter().map(|it| it.addr().to_string());
        let hosts: Vec<_> = hosts.collect();
        format!("redis+sentinel://{}/mymaster", hosts.join(","))
    }

    /// Returns a sentinel by its number.
    ///
    /// # Panics
    /// There are fewer sentinels.
    #[must_use]
    #[allow(
        clippy::indexing_slicing,
        reason = "a test passes a number of its own set"
    )]
    pub fn sentinel(&self, at: usize) -> &RedisServer {
        &self.sentinels[at]
    }

    /// Returns the number of the server that a sentinel names as the primary.
    ///
    /// # Errors
    /// The sentinel does not answer.
    pub fn named_by(&self, sentinel: &RedisServer) -> io::Result<Option<usize>> {
        let question = ["SENTINEL", "get-master-addr-by-name", "mymaster"];
        let answer = sentinel.command(&question)?;
        let port = answer.items().get(1).and_then(Reply::int);
        Ok(port.and_then(|port| self.named(port)))
    }

    /// Waits until all running sentinels name the same server, other than `former`, and returns its number.
    ///
    /// # Errors
    /// They do not within 30 s, or one does not answer.
    pub fn wait_for_fail_over(&self, former: usize) -> io::Result<usize> {
        let mut named = None;
        self.wait("another primary", |set| {
            let running = set.sentinels.iter().filter(|it| it.pid().is_some());
            let answers = running.map(|it| set.named_by(it));
            let answers = answers.collect::<io::Result<Vec<_>>>()?;
            named = answers.first().copied().flatten();
            Ok(named.is_some_and(|at| at != former) && answers.iter().all(|it| *it == named))
        })?;
        named.ok_or_else(|| io::Error::other("there is no sentinel"))
    }

    /// Waits until all sentinels know each other and all servers, and none is down for them.
    ///
    /// # Errors
    /// They do not within 30 s, or one does not answer.
    pub fn wait_until_healthy(&self) -> io::Result<()> {
        self.wait("sentinels that know all", |set| {
            let mut all = set.sentinels.iter();
            all.try_fold(true, |so_far, it| Ok(so_far && set.is_known_to(it)?))
        })
    }

    fn is_known_to(&self, sentinel: &RedisServer) -> io::Result<bool> {
        let primary = sentinel.command(&["SENTINEL", "MASTER", "mymaster"])?;
        let replicas = sentinel.command(&["SENTINEL", "REPLICAS", "mymaster"])?;
        let count = |name: &str| value(&primary, name).and_then(|count| count.parse().ok());
        let follows = |replica: &Reply| {
            value(replica, "flags").as_deref() == Some("slave")
                && value(replica, "master-link-status").as_deref() == Some("ok")
        };
        Ok(
            count("num-other-sentinels") == Some(self.sentinels.len() - 1)
                && value(&primary, "flags").as_deref() == Some("master")
                && replicas.items().len() == self.count() - 1
                && replicas.items().iter().all(follows),
        )
    }

    fn wait(
        &self,
        what: &str,
        mut condition: impl FnMut(&Self) -> io::Result<bool>,
    ) -> io::Result<()> {
        wait(what, self.sentinels.iter(), || condition(self))
    }
}

/// Returns a value of a list of names and values.
fn value(pairs: &Reply, name: &str) -> Option<String> {
    let mut words = pairs.items().iter();
    words.find(|word| word.text().as_deref() == Some(name))?;
    words.next()?.text()
}

impl Deref for SentinelSet {
    type Target = ProxiedServers;

    fn deref(&self) -> &ProxiedServers {
        &self.servers
    }
}
