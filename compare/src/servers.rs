//! Servers for a comparison: started on free ports, in throw-away folders, and stopped at its end.

use std::io;
use std::time::{Duration, Instant};

use lockkeeper_testkit::{
    ConsulKind, ConsulOptions, ConsulServer, EtcdKind, EtcdOptions, EtcdServer, MySqlKind,
    MySqlOptions, MySqlServer, PostgresKind, PostgresOptions, PostgresServer, RedisKind,
    RedisOptions, RedisServer, TestServer, ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer,
};

use crate::cancel::Cancellation;
use crate::error::Error;
use crate::scenario::LONGEST_TTL;
use crate::store::spec::StoreSpec;

/// The members of a quorum: as many as in Redlock's own description.
const MEMBERS: usize = 5;
/// How many of them may be dead.
const DEAD: usize = 2;
/// The resolution of what a Redis server says of its uptime.
const RESOLUTION: Duration = Duration::from_secs(2);
/// Connections beyond those of a scenario's threads.
const EXTRA_CONNECTIONS: u32 = 60;

/// Servers that run until this is dropped.
pub(crate) struct Servers {
    /// The first one is a store, and all of them together are one.
    redis: Vec<RedisServer>,
    /// When all members of the quorum grant locks.
    members_grant: Instant,
    /// One of every other kind.
    others: Vec<Box<dyn TestServer>>,
    /// What is not installed.
    pub(crate) missing: Vec<String>,
}

impl Servers {
    /// Starts one server of every kind that is installed, and five of Redis, which accept a
    /// connection for each of `threads`.
    pub(crate) fn start(threads: u32, cancel: &Cancellation) -> Result<Self, Error> {
        let (mut redis, mut missing) = (Vec::new(), Vec::new());
        let installed = RedisKind::ALL
            .into_iter()
            .find(|kind| kind.program().is_ok());
        if let Some(kind) = installed {
            for _ in 0..MEMBERS {
                let server = RedisServer::start(kind, &RedisOptions::new());
                redis.push(server.map_err(|error| not_started(&error))?);
            }
        } else {
            missing.push("no redis-server or valkey-server on this machine".to_owned());
        }
        let members_grant = Instant::now() + LONGEST_TTL + RESOLUTION;
        let connections = &*threads.saturating_add(EXTRA_CONNECTIONS).to_string();
        let mysql = |kind: MySqlKind| -> (_, Start<'_>) {
            let options = MySqlOptions::new().config("max-connections", connections);
            let start = move || boxed(MySqlServer::start(kind, &options));
            (kind.program(), Box::new(start))
        };
        let postgres = PostgresKind::Postgres15;
        let start_postgres = || {
            let options = PostgresOptions::new().config("max_connections", connections);
            boxed(PostgresServer::start(postgres, &options))
        };
        let etcd = EtcdKind::Etcd3_4;
        let start_etcd = || boxed(EtcdServer::start(etcd, &EtcdOptions::new()));
        let consul = ConsulKind::Consul1_8;
        let start_consul = || boxed(ConsulServer::start(consul, &ConsulOptions::new()));
        let zookeeper = ZooKeeperKind::ZooKeeper3_8;
        let start_zookeeper = || boxed(ZooKeeperServer::start(zookeeper, &ZooKeeperOptions::new()));
        let [mariadb, mysql] = MySqlKind::ALL.map(mysql);
        let mut others = Vec::new();
        for (program, start) in [
            mariadb,
            mysql,
            (postgres.program(), Box::new(start_postgres)),
            (etcd.program(), Box::new(start_etcd)),
            (consul.program(), Box::new(start_consul)),
            (zookeeper.program(), Box::new(start_zookeeper)),
        ] {
            cancel.check()?;
            match program {
                Ok(_) => others.push(start().map_err(|error| not_started(&error))?),
                Err(why) => missing.push(why),
            }
        }
        Ok(Self {
            redis,
            members_grant,
            others,
            missing,
        })
    }

    /// Returns the stores on these servers.
    pub(crate) fn specs(&self) -> Vec<StoreSpec> {
        let ports: Vec<_> = self.redis.iter().map(|it| it.addr().port()).collect();
        let redis = self.redis.first().map(TestServer::url);
        let others = self.others.iter().map(|server| server.url());
        let urls = redis.into_iter().chain(others);
        let mut all: Vec<_> = urls.map(|url| StoreSpec::url(&url)).collect();
        if !ports.is_empty() {
            all.push(StoreSpec::quorum(ports, LONGEST_TTL));
        }
        let all = all.into_iter();
        all.map(|spec| spec.origin("the started servers")).collect()
    }

    /// Waits until the members of the quorum grant locks: a member that was just started cannot know that it has
    /// forgotten none.
    pub(crate) fn wait_for_members(&self, cancel: &Cancellation) -> Result<(), Error> {
        cancel.sleep(self.members_grant.saturating_duration_since(Instant::now()))
    }

    /// Kills two of the five Redis servers, neither of them the store `redis`. They are started again when
    /// the result is dropped.
    pub(crate) fn kill_two(&self) -> KilledServers<'_> {
        let killed: Vec<_> = self.redis.iter().skip(1).take(DEAD).collect();
        for server in &killed {
            server.kill();
        }
        KilledServers(killed)
    }
}

/// Starts a server.
type Start<'a> = Box<dyn FnOnce() -> io::Result<Box<dyn TestServer>> + 'a>;

fn boxed(started: io::Result<impl TestServer>) -> io::Result<Box<dyn TestServer>> {
    Ok(Box::new(started?))
}

fn not_started(error: &io::Error) -> Error {
    Error::failed(format!("a server could not be started: {error}"))
}

/// Servers that are started again when this is dropped.
pub(crate) struct KilledServers<'a>(Vec<&'a RedisServer>);

impl Drop for KilledServers<'_> {
    fn drop(&mut self) {
        for server in &self.0 {
            // A server that does not come back has no vote.
            let _ = server.restart();
        }
    }
}
