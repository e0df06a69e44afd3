//! The Redis backend: `redis:`, `rediss:` (TLS), `unix:` (sockets), `redis+sentinel:` and `redis+cluster:`
//! (with TLS `rediss+sentinel:` and `rediss+cluster:`), for Redis from 6.2 on and Valkey.
//!
//! A lock is one key, set by `SET … NX PX` within a script that also mints the epoch. If there are several leases,
//! or callers wait, the key is a sorted set of them. The permits of a name have another key of the same form. A
//! further key keeps the last epoch of the namespace. In a cluster, a name belongs to one of 1,024 buckets of its
//! namespace, and each bucket has such a further key.

// The modules in reading order: `driver` and `options` (from a URL to options), `wire` (what is sent to a server),
// and `connection`. Then come `topology` (the servers), `locks` (attempt, renewal, release, wait), `operate` (who,
// unlock, doctor), and `provider`. Each imports only modules before it.
//
// What must never be otherwise:
// - On Redis a name has one key, and its permits have another one. While a caller waits, the key exists. So one
//   SET NX takes a free name, and no attempt overtakes a waiter.
// - On Redis one key keeps the last epoch of a namespace. It is not among the `KEYS` of a script, since a lock
//   has another slot. The lock's key has its epoch and its owner. In a cluster, each bucket of names has such a
//   key, in the slot of its names, and it is among the `KEYS`.
// - No script of an attempt changes anything on a node that is giving its slot to another node. The script
//   would fail in the middle of its work.
// - A server that a sentinel names is used only if its own `ROLE` says that it is a primary. After another
//   server became the primary, no older connection of the pool is used.
// - If a Redis pool has several connections, attempts leave one of them to renewals and releases.

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
