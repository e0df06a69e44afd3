//! Real servers and a proxy that misbehaves, for the tests of lockkeeper's backends.
//!
//! [`RedisServer`], [`MySqlServer`], [`PostgresServer`], [`EtcdServer`], [`ConsulServer`] and [`ZooKeeperServer`] start an
//! installed server as a child process, on a free port of 127.0.0.1, in a throw-away folder. `scripts/servers` of the
//! project's repository
//! installs the servers. A server ends with its owner: at drop, at a panic, and also when the owner's process is
//! killed.
//!
//! # Features
//! - `mysql`: `MySqlClient`, with which a test looks at a MySQL or MariaDB server.
//! - `sqlite`: SQLite files.
//! - `suite`: test programs whose cases run on every kind of server, by libtest-mimic.
//! - `tls`: servers that speak TLS, with certificates made for them.
//!
//! None is on by default.
//!
//! ```no_run
//! # fn run() -> std::io::Result<()> {
//! use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer};
//!
//! let server = RedisServer::start(RedisKind::Redis8, &RedisOptions::new())?;
//! let proxy = Proxy::new(server.addr())?;
//! let url = format!("redis://{}", proxy.addr());
//! proxy.once("EVALSHA", Fault::DropReplies); // the next script runs, and its reply is lost
//! # let _ = url;
//! # Ok(()) }
//! ```

mod cluster;
mod consul;
mod daemon;
mod etcd;
mod find;
mod http;
mod kinds;
mod mysql;
mod network;
mod pool;
mod postgres;
mod process;
mod proxy;
mod redis;
mod register;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store_kind;
#[cfg(feature = "suite")]
pub mod suite;
mod table;
mod template;
mod test_server;
mod timeouts;
mod tls;
mod until;
mod watchdog;
mod zookeeper;

pub use cluster::{Cluster, Member, NetworkedMember};
pub use consul::{ConsulCluster, ConsulKey, ConsulKind, ConsulOptions, ConsulServer};
pub use daemon::Daemon;
pub use etcd::{EtcdCluster, EtcdKey, EtcdKind, EtcdOptions, EtcdServer};
#[cfg(feature = "mysql")]
pub use mysql::{MySqlClient, MySqlSession};
pub use mysql::{MySqlKind, MySqlOptions, MySqlServer};
pub use pool::Shared;
pub use postgres::{PgBouncer, PoolMode, PostgresKind, PostgresOptions, PostgresServer};
pub use proxy::{Counts, Fault, Proxy};
pub use redis::{ProxiedServers, RedisCluster, SentinelSet};
pub use redis::{RedisClient, RedisKind, RedisOptions, RedisServer, Reply};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteFile;
pub use store_kind::StoreKind;
pub use test_server::{EndFault, Facts, TestServer};
pub use timeouts::with_timeouts;
pub use tls::Certificates;
pub use until::until;
pub use zookeeper::{
    ZooKeeperClient, ZooKeeperEnsemble, ZooKeeperKind, ZooKeeperOptions, ZooKeeperServer,
};
