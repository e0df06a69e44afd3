//! Redis and Valkey.

mod client;
mod cluster;
mod kind;
mod options;
mod proxied;
mod sentinel;
mod server;
mod test_server;

pub use client::{RedisClient, Reply};
pub use cluster::RedisCluster;
pub use kind::RedisKind;
pub use options::RedisOptions;
pub use proxied::ProxiedServers;
pub use sentinel::SentinelSet;
pub use server::RedisServer;
pub(crate) use test_server::start;
pub(crate) use test_server::{start_cluster, start_with_sentinel};
