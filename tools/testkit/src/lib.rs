//! Real servers and a proxy that misbehaves, for the tests of lockkeeper's backends.
//!
//! [`RedisServer`], [`MySqlServer`], [`PostgresServer`] and `EtcdServer` start an installed server as a child
//! process, on a free port of 127.0.0.1, in a throw-away folder. `scripts/servers` of the project's repository
//! installs the servers. A server ends with its owner: at drop, at a panic, and also when the owner's process is
//! killed.
//!
//! # Features
//! - `etcd`: etcd servers.
//! - `mysql`: `MySqlClient`, with which a test looks at a MySQL or MariaDB server.
//! - `proxy`: `Proxy`, which drops, delays and cuts messages, and `SentinelSet` and `RedisCluster`.
//! - `sqlite`: SQLite files.
//! - `suite`: test programs whose cases run on every kind of server, by libtest-mimic.
//! - `tls`: servers that speak TLS, with certificates made for them.
//!
//! None is on by default.
//!
//! ```no_run
//! # #[cfg(all(unix, feature = "proxy"))] fn run() -> std::io::Result<()> {
//! use lockkeeper_testkit::{Fault, Proxy, RedisKind, RedisOptions, RedisServer};
//!
//! let server = RedisServer::start(RedisKind::Redis8, &RedisOptions::new())?;
//! let proxy = Proxy::new(server.addr())?;
//! let url = format!("redis://{}", proxy.addr());
//! proxy.once("EVALSHA", Fault::DropReplies); // the next script runs, and its reply is lost
//! # let _ = url;
//! # Ok(()) }
//! ```

#[cfg(unix)]
mod daemon;
#[cfg(all(unix, feature = "etcd"))]
mod etcd;
#[cfg(unix)]
mod find;
#[cfg(unix)]
mod kinds;
#[cfg(unix)]
mod mysql;
#[cfg(unix)]
mod pool;
#[cfg(unix)]
mod postgres;
#[cfg(unix)]
mod process;
#[cfg(feature = "proxy")]
mod proxy;
#[cfg(unix)]
mod redis;
#[cfg(all(unix, feature = "sqlite"))]
mod sqlite;
#[cfg(unix)]
mod store_kind;
#[cfg(all(unix, feature = "suite"))]
pub mod suite;
#[cfg(unix)]
mod template;
#[cfg(unix)]
mod test_server;
mod timeouts;
#[cfg(unix)]
mod tls;
mod until;
#[cfg(unix)]
mod watchdog;

#[cfg(unix)]
pub use daemon::Daemon;
#[cfg(all(unix, feature = "etcd"))]
pub use etcd::{EtcdCluster, EtcdKey, EtcdKind, EtcdOptions, EtcdServer};
#[cfg(all(unix, feature = "mysql"))]
pub use mysql::{MySqlClient, MySqlSession};
#[cfg(unix)]
pub use mysql::{MySqlKind, MySqlOptions, MySqlServer};
#[cfg(unix)]
pub use pool::Shared;
#[cfg(unix)]
pub use postgres::{PgBouncer, PoolMode, PostgresKind, PostgresOptions, PostgresServer};
#[cfg(feature = "proxy")]
pub use proxy::{Counts, Fault, Proxy};
#[cfg(all(unix, feature = "proxy"))]
pub use redis::{ProxiedServers, RedisCluster, SentinelSet};
#[cfg(unix)]
pub use redis::{RedisClient, RedisKind, RedisOptions, RedisServer, Reply};
#[cfg(all(unix, feature = "sqlite"))]
pub use sqlite::SqliteFile;
#[cfg(unix)]
pub use store_kind::StoreKind;
#[cfg(unix)]
pub use test_server::{EndFault, Facts, TestServer};
pub use timeouts::with_timeouts;
#[cfg(unix)]
pub use tls::Certificates;
pub use until::until;
