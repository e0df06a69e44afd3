//! The Redis backend: `redis:`, `rediss:` (TLS), `unix:` (sockets), `redis+sentinel:` and `redis+cluster:`
//! (with TLS `rediss+sentinel:` and `rediss+cluster:`), for Redis from 6.2 on and Valkey.
//!
//! A lock is one key, set by `SET … NX PX` within a script that also mints the epoch. When there are several
//! leases, or callers wait, the key is a sorted set of these; so are the permits of a name, by a key of their own. One
//! key more keeps the last epoch of the namespace. In a cluster, a name belongs to one of 1,024 buckets of its
//! namespace, and each bucket has such a key.

// In the order in which one learns it: `driver` and `options` (what a URL says), `wire` (what is said to a server),
// `connection`, `topology` (which servers there are), `locks` (attempt, renewal, release, wait), `operate` (who, unlock,
// doctor), and `provider` above them. Each imports only those before it.
//
// What must never be otherwise:
// - On Redis a name has one key, and its permits have another one. While anyone waits the key exists, so a free
//   name is taken by one SET NX and no attempt passes a waiter.
// - On Redis the last epoch is one key for a namespace, which is not among the `KEYS` of a script, since a lock
//   has another slot. The lock's key holds its epoch and its owner. In a cluster it is one key for a bucket of
//   names, in their slot, and among the `KEYS`.
// - No script of an attempt changes anything on a node that gives its slot away: it would end with half of its
//   work.
// - A server that a sentinel names is used only if it says itself that it is a primary, and no connection of
//   the pool is used again after another server was found to be the primary.
// - Attempts leave one connection of a Redis pool of several to renewals and releases.

mod connection;
mod driver;
mod locks;
mod operate;
mod options;
mod provider;
mod topology;
mod wire;

pub use driver::RedisDriver;
pub use options::RedisOptions;
pub use provider::RedisProvider;
