//! The list of all kinds of stores.

use std::fmt;
use std::io;
use std::sync::Arc;

#[cfg(feature = "sqlite")]
use crate::sqlite;
use crate::{ConsulKind, EtcdKind, consul, etcd};
#[cfg(feature = "mysql")]
use crate::{MySqlKind, mysql};
use crate::{
    PostgresKind, RedisKind, TestServer, ZooKeeperKind, postgres, redis, table, zookeeper,
};

/// A kind of store that a test starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreKind {
    /// A file.
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// A Redis or Valkey server.
    Redis(RedisKind),
    /// A Redis server, and a sentinel that names it and never replaces it.
    RedisSentinel(RedisKind),
    /// Three primaries of a Redis Cluster, which nothing replaces.
    RedisCluster(RedisKind),
    /// A MySQL or MariaDB server, which lists its locks.
    #[cfg(feature = "mysql")]
    MySql(MySqlKind),
    /// A PostgreSQL server.
    Postgres(PostgresKind),
    /// A table of a MySQL or MariaDB server.
    #[cfg(feature = "mysql")]
    MySqlTable(MySqlKind),
    /// A table of a PostgreSQL server.
    PostgresTable(PostgresKind),
    /// A single etcd.
    Etcd(EtcdKind),
    /// Three members of an etcd cluster.
    EtcdCluster(EtcdKind),
    /// A single Consul server.
    Consul(ConsulKind),
    /// Three servers of a Consul cluster.
    ConsulCluster(ConsulKind),
    /// A single ZooKeeper server.
    ZooKeeper(ZooKeeperKind),
    /// Three members of a ZooKeeper ensemble.
    ZooKeeperEnsemble(ZooKeeperKind),
}

impl StoreKind {
    /// Returns one version of each single server, for the cases that all servers have. A case that depends on the version
    /// belongs to one server, and runs on all its versions.
    #[must_use]
    pub fn servers() -> Vec<Self> {
        let mut kinds = vec![Self::Redis(RedisKind::Redis7)];
        #[cfg(feature = "mysql")]
        kinds.extend(MySqlKind::ALL.map(Self::MySql));
        kinds.push(Self::Postgres(PostgresKind::Postgres15));
        kinds.push(Self::Etcd(EtcdKind::Etcd3_4));
        kinds.push(Self::Consul(ConsulKind::Consul1_8));
        kinds.push(Self::ZooKeeper(ZooKeeperKind::ZooKeeper3_8));
        kinds
    }

    /// Returns the tables of SQL servers on which the cases of faults run, too.
    #[must_use]
    pub fn tables() -> Vec<Self> {
        vec![
            #[cfg(feature = "mysql")]
            Self::MySqlTable(MySqlKind::MariaDb10),
            Self::PostgresTable(PostgresKind::Postgres15),
        ]
    }

    /// Returns the name for tests: `redis-7`, `redis-sentinel`, `mysql-9`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite => "sqlite",
            Self::Redis(kind) => kind.name(),
            Self::RedisSentinel(_) => "redis-sentinel",
            Self::RedisCluster(_) => "redis-cluster",
            #[cfg(feature = "mysql")]
            Self::MySql(kind) => kind.name(),
            Self::Postgres(kind) => kind.name(),
            #[cfg(feature = "mysql")]
            Self::MySqlTable(MySqlKind::MariaDb10) => "mariadb-10-table",
            #[cfg(feature = "mysql")]
            Self::MySqlTable(MySqlKind::MySql9) => "mysql-9-table",
            Self::PostgresTable(PostgresKind::Postgres15) => "postgres-15-table",
            Self::PostgresTable(PostgresKind::Postgres18) => "postgres-18-table",
            Self::Etcd(kind) => kind.name(),
            Self::EtcdCluster(_) => "etcd-cluster",
            Self::Consul(kind) => kind.name(),
            Self::ConsulCluster(_) => "consul-cluster",
            Self::ZooKeeper(kind) => kind.name(),
            Self::ZooKeeperEnsemble(_) => "zookeeper-ensemble",
        }
    }

    /// Returns why tests with this store are shown as ignored, `None` when they run. In continuous integration (`CI` is
    /// set) they always run, and fail where a server is missing.
    #[must_use]
    pub fn ignored(self) -> Option<String> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite => None,
            Self::Redis(kind) => kind.ignored(),
            Self::RedisSentinel(kind) | Self::RedisCluster(kind) => kind.ignored(),
            #[cfg(feature = "mysql")]
            Self::MySql(kind) | Self::MySqlTable(kind) => kind.ignored(),
            Self::Postgres(kind) | Self::PostgresTable(kind) => kind.ignored(),
            Self::Etcd(kind) | Self::EtcdCluster(kind) => kind.ignored(),
            Self::Consul(kind) | Self::ConsulCluster(kind) => kind.ignored(),
            Self::ZooKeeper(kind) | Self::ZooKeeperEnsemble(kind) => kind.ignored(),
        }
    }

    /// Starts a store of this kind in a throw-away folder, and returns when it replies.
    ///
    /// # Errors
    /// There is no such server on this machine, or it did not start: its log is in the error.
    pub fn start(self) -> io::Result<Arc<dyn TestServer>> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite => sqlite::start(),
            Self::Redis(kind) => redis::start(kind),
            Self::RedisSentinel(kind) => redis::start_with_sentinel(kind),
            Self::RedisCluster(kind) => redis::start_cluster(kind),
            #[cfg(feature = "mysql")]
            Self::MySql(kind) => mysql::start(kind),
            Self::Postgres(kind) => postgres::start(kind),
            #[cfg(feature = "mysql")]
            Self::MySqlTable(kind) => table::start_mysql(kind),
            Self::PostgresTable(kind) => table::start_postgres(kind),
            Self::Etcd(kind) => etcd::start(kind),
            Self::EtcdCluster(kind) => etcd::start_cluster(kind),
            Self::Consul(kind) => consul::start(kind),
            Self::ConsulCluster(kind) => consul::start_cluster(kind),
            Self::ZooKeeper(kind) => zookeeper::start(kind),
            Self::ZooKeeperEnsemble(kind) => zookeeper::start_ensemble(kind),
        }
    }
}

impl fmt::Display for StoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<RedisKind> for StoreKind {
    fn from(kind: RedisKind) -> Self {
        Self::Redis(kind)
    }
}

#[cfg(feature = "mysql")]
impl From<MySqlKind> for StoreKind {
    fn from(kind: MySqlKind) -> Self {
        Self::MySql(kind)
    }
}

impl From<PostgresKind> for StoreKind {
    fn from(kind: PostgresKind) -> Self {
        Self::Postgres(kind)
    }
}

impl From<EtcdKind> for StoreKind {
    fn from(kind: EtcdKind) -> Self {
        Self::Etcd(kind)
    }
}

impl From<ConsulKind> for StoreKind {
    fn from(kind: ConsulKind) -> Self {
        Self::Consul(kind)
    }
}

impl From<ZooKeeperKind> for StoreKind {
    fn from(kind: ZooKeeperKind) -> Self {
        Self::ZooKeeper(kind)
    }
}
