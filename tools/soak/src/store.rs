//! The stores that a campaign runs on, and how each is broken.

mod cluster;
mod etcd;
mod memory;
mod mysql;
mod postgres;
mod quorum;
mod redis;
mod sentinel;
mod sqlite;

use std::fmt;
use std::io;
use std::time::Duration;

use lockkeeper_testkit::{Daemon, EtcdKind, MySqlKind, PostgresKind, Proxy, RedisKind};

use crate::args::{Args, StoreChoice};
use crate::faults::Lane;

/// A store that this program has started, and can break.
pub(crate) trait Store: Sync {
    /// Returns the URLs that a worker opens, ready for `key=value`. The first leads to the store directly, and
    /// the second through the proxy, if there is one.
    fn urls(&self) -> Vec<String>;

    /// Returns the proxy.
    fn proxy(&self) -> Option<&Proxy> {
        None
    }

    /// Returns whether a lease ends with the connection on which it was granted.
    fn ends_with_connection(&self) -> bool {
        false
    }

    /// Returns whether each process has a store of its own.
    fn is_in_process(&self) -> bool {
        false
    }

    /// Returns how much longer than its ttl a lease may outlive its holder.
    fn grace(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Returns a URL, ready for `key=value`, that only the faults of the store itself break, so that a guard is told of a loss
    /// at once. `None`: there is none.
    fn telling_url(&self) -> Option<String> {
        self.urls()
            .into_iter()
            .next()
            .filter(|_| !self.is_in_process())
    }

    /// Returns the faults of the store.
    fn faults(&self) -> Vec<StoreFault<'_>>;

    /// Returns the connections that are open, when no keeper is.
    fn connections(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Returns what is in the store, when all locks are free, apart from what it keeps for a later time.
    fn entries(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

type Act<'a> = Box<dyn Fn(&mut Lane<'_>) -> io::Result<()> + 'a>;

/// A fault that a store has, and that restores what it broke.
pub(crate) struct StoreFault<'a> {
    pub(crate) kind: &'static str,
    pub(crate) act: Act<'a>,
}

impl<'a> StoreFault<'a> {
    pub(crate) fn new(
        kind: &'static str,
        act: impl Fn(&mut Lane<'_>) -> io::Result<()> + 'a,
    ) -> Self {
        let act = Box::new(act);
        Self { kind, act }
    }
}

impl fmt::Debug for StoreFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreFault").field(&self.kind).finish()
    }
}

/// A leader of 3.4.23 that resumes can end leases that the new leader has renewed, so that a lock has two holders:
/// <https://github.com/etcd-io/etcd/issues/15247>.
const ETCD: EtcdKind = EtcdKind::Etcd3_5;

/// Returns why this store cannot be run on this machine, `None` if it can. In continuous integration a missing
/// server is a failure instead.
pub(crate) fn missing(choice: StoreChoice) -> Option<String> {
    match choice {
        StoreChoice::Redis | StoreChoice::Sentinel | StoreChoice::Cluster | StoreChoice::Quorum => {
            RedisKind::Redis7.ignored()
        }
        StoreChoice::MariaDb => MySqlKind::MariaDb10.ignored(),
        StoreChoice::MySql => MySqlKind::MySql9.ignored(),
        StoreChoice::Postgres => PostgresKind::Postgres15.ignored(),
        StoreChoice::Etcd => ETCD.ignored(),
        StoreChoice::Memory | StoreChoice::Sqlite | StoreChoice::All => None,
    }
}

/// Starts a store in a throw-away folder.
pub(crate) fn start(choice: StoreChoice, args: &Args) -> io::Result<Box<dyn Store>> {
    let settings = ServerSettings::of(args);
    Ok(match choice {
        StoreChoice::Memory => Box::new(memory::Memory),
        StoreChoice::Sqlite => Box::new(sqlite::Sqlite::start()?),
        StoreChoice::Redis => Box::new(redis::Redis::start(RedisKind::Redis7, settings)?),
        StoreChoice::Sentinel => Box::new(sentinel::Sentinel::start(RedisKind::Redis7, settings)?),
        StoreChoice::Cluster => Box::new(cluster::Cluster::start(
            RedisKind::Redis7,
            args.names,
            settings,
        )?),
        StoreChoice::Quorum => Box::new(quorum::Quorum::start(RedisKind::Redis7, settings)?),
        StoreChoice::MariaDb => Box::new(mysql::MySql::start(MySqlKind::MariaDb10, settings)?),
        StoreChoice::MySql => Box::new(mysql::MySql::start(MySqlKind::MySql9, settings)?),
        StoreChoice::Postgres => {
            let kind = PostgresKind::Postgres15;
            Box::new(postgres::Postgres::start(kind, settings)?)
        }
        StoreChoice::Etcd => Box::new(etcd::Etcd::start(ETCD)?),
        StoreChoice::All => return Err(io::Error::other("`all` is not one store")),
    })
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

    /// Adds keys to the URL of a server. Replies that take longer than this are lost, so that outages end within
    /// a round.
    fn with_keys(&self, url: &str) -> String {
        self.with_grace(with_timeouts(url))
    }

    /// Adds `restart_grace` to a URL that is ready for keys.
    fn with_grace(&self, mut url: String) -> String {
        if let Some(grace) = self.restart_grace {
            url.push_str(&format!("restart_grace={}ms&", grace.as_millis()));
        }
        url
    }

    /// Kills a server that then knows no lease any more.
    fn kill(&self, server: &Daemon, lane: &Lane<'_>) -> io::Result<()> {
        let kill = || {
            server.kill();
            Ok(())
        };
        if self.is_restart_safe {
            kill()
        } else {
            lane.journal.forget(kill)
        }
    }
}

/// Adds the keys after which a reply is lost.
fn with_timeouts(url: &str) -> String {
    format!("{url}?response_timeout=500ms&connect_timeout=500ms&")
}

/// How long a fault lasts beside which something must be granted.
const WATCHED: Duration = Duration::from_secs(3);

/// How often a fault looks for what it waits for.
const POLL: Duration = Duration::from_millis(1);
