//! Servers for a comparison: started on free ports, in throw-away folders, and stopped at its end.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lockkeeper_testkit::{
    EtcdKind, EtcdOptions, EtcdServer, MySqlKind, MySqlOptions, MySqlServer, PostgresKind,
    PostgresOptions, PostgresServer, RedisKind, RedisOptions, RedisServer,
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
    mysql: Vec<MySqlServer>,
    postgres: Option<PostgresServer>,
    etcd: Option<EtcdServer>,
    /// What is not installed.
    pub(crate) missing: Vec<String>,
}

impl Servers {
    /// Starts one server of every kind that is installed, and five of Redis, which accept a
    /// connection for each of `threads`.
    pub(crate) fn start(threads: u32, cancel: &Cancellation) -> Result<Self, Error> {
        let (mut redis, mut mysql, mut missing) = (Vec::new(), Vec::new(), Vec::new());
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
        let connections = threads.saturating_add(EXTRA_CONNECTIONS).to_string();
        let options = MySqlOptions::new().config("max-connections", &connections);
        for kind in MySqlKind::ALL {
            cancel.check()?;
            let start = || MySqlServer::start(kind, &options);
            mysql.extend(if_installed(kind.program(), &mut missing, start)?);
        }
        cancel.check()?;
        let kind = PostgresKind::Postgres15;
        let options = PostgresOptions::new().config("max_connections", &connections);
        let start = || PostgresServer::start(kind, &options);
        let postgres = if_installed(kind.program(), &mut missing, start)?;
        cancel.check()?;
        let kind = EtcdKind::Etcd3_4;
        let start = || EtcdServer::start(kind, &EtcdOptions::new());
        let etcd = if_installed(kind.program(), &mut missing, start)?;
        Ok(Self {
            redis,
            members_grant,
            mysql,
            postgres,
            etcd,
            missing,
        })
    }

    /// Returns the stores on these servers.
    pub(crate) fn specs(&self) -> Vec<StoreSpec> {
        let redis = self.redis.first();
        let redis = redis.map(|server| StoreSpec::url(&server.url()));
        let ports = self.redis.iter().map(|server| server.addr().port());
        let quorum = redis
            .is_some()
            .then(|| StoreSpec::quorum(ports.collect(), LONGEST_TTL));
        let mysql = self.mysql.iter();
        let mysql = mysql.map(|server| StoreSpec::url(&server.url()));
        let postgres = self.postgres.iter();
        let postgres = postgres.map(|server| StoreSpec::url(&server.url()));
        let etcd = self.etcd.iter();
        let etcd = etcd.map(|server| StoreSpec::url(&server.url()));
        let all = redis
            .into_iter()
            .chain(mysql)
            .chain(postgres)
            .chain(etcd)
            .chain(quorum);
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

/// Starts a server whose program is there; why there is none is added to `missing`.
fn if_installed<S>(
    program: Result<PathBuf, String>,
    missing: &mut Vec<String>,
    start: impl FnOnce() -> io::Result<S>,
) -> Result<Option<S>, Error> {
    match program {
        Ok(_) => start().map(Some).map_err(|error| not_started(&error)),
        Err(why) => {
            missing.push(why);
            Ok(None)
        }
    }
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
