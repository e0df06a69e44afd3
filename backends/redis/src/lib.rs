//! The Redis backend: `redis:`, `rediss:` (TLS), `unix:` (sockets), `redis+sentinel:` and `redis+cluster:`
//! (with TLS `rediss+sentinel:` and `rediss+cluster:`), for Redis from 6.2 on and Valkey.
//!
//! A lock is one key, set by `SET … NX PX` within a script that also mints the epoch. When there are several
//! leases, or callers wait, the key is a sorted set of these; so are the permits of a name, by a key of their own. One
//! key more keeps the last epoch of the namespace. In a cluster, a name belongs to one of 1,024 buckets of its
//! namespace, and each bucket has such a key.

mod access;
mod acquire;
mod admin;
mod attempt;
mod batch;
mod bucket_keys;
mod calls;
mod cluster;
mod cluster_admin;
mod cluster_batch;
mod cluster_provider;
mod connection;
mod connector;
mod driver;
mod examine;
mod examine_cluster;
mod examine_sentinels;
mod failure;
mod keys;
mod lease;
mod link;
mod listener;
mod node;
mod options;
mod owner;
mod provider;
mod reply;
mod script;
mod scripts;
mod sentinels;
mod server_clock;
mod slot_map;
mod slots;
mod store;
mod subscription;
mod supplied;

pub use cluster_provider::RedisClusterProvider;
pub use driver::RedisDriver;
pub use options::RedisOptions;
pub use provider::RedisProvider;

/// The backend's name in errors and capabilities.
const BACKEND: &str = "redis";
