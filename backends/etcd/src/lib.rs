//! The etcd backend of [`lockkeeper`](https://docs.rs/lockkeeper): locks that outlive the loss of a server.
//!
//! All requests of a name are keys under one prefix, in the order of their creation. The earlier keys decide
//! whether a request is granted. A writer waits for all of them, and a reader for the writers. A permit waits until
//! there are fewer earlier permits than the limit. A key is bound to a lease, which etcd ends when its process is
//! gone.

// What must never be otherwise:
// - In etcd only the order in which the keys of a name were created is the queue. A key is granted if the
//   keys before it permit that. No key is created again to change its position.
// - A request to etcd without a reply must not bind a key to a lease that is kept alive. So its lease gets no
//   further keys and no keep-alive. The keys of held locks move to another lease at their next renewal.
// - Every grant in etcd reads or compares the base of the epochs in its own transaction. So no later grant has
//   a smaller epoch, although openings raise the base.

// The modules in reading order: driver, options, connection, wire, locks, operate.
mod connection;
mod driver;
mod locks;
mod operate;
mod options;
mod plain;
mod provider;
mod store;
mod wire;

pub use driver::EtcdDriver;
pub use locks::lease::EtcdLease;
pub use options::EtcdOptions;
#[doc(hidden)]
pub use plain::{PlainClient, decoded, encoded, number};
pub use provider::EtcdProvider;

const BACKEND: &str = "etcd";
