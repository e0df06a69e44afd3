//! Redis and Valkey.

mod client;
#[cfg(feature = "proxy")]
mod cluster;
mod kind;
mod options;
#[cfg(feature = "proxy")]
mod proxied;
#[cfg(feature = "proxy")]
mod sentinel;
mod server;
mod test_server;

pub use client::{RedisClient, Reply};
#[cfg(feature = "proxy")]
pub use cluster::RedisCluster;
pub use kind::RedisKind;
pub use options::RedisOptions;
#[cfg(feature = "proxy")]
pub use proxied::ProxiedServers;
#[cfg(feature = "proxy")]
pub use sentinel::SentinelSet;
pub use server::RedisServer;
pub(crate) use test_server::start;
#[cfg(feature = "proxy")]
pub(crate) use test_server::{start_cluster, start_with_sentinel};
