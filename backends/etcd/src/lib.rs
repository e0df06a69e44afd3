//! The etcd backend of [`lockkeeper`](https://docs.rs/lockkeeper): locks that outlive the loss of a server.
//!
//! All requests of a name are keys under one prefix, in the order of their creation. The keys before a request decide
//! whether it is granted. A writer waits for all of them, a reader for the writers, and a permit for as many as there
//! are too many. A key is bound to a lease, which etcd ends when its process is gone.

// What must never be otherwise:
// - In etcd the order in which the keys of a name were created is the queue, and nothing else is. A key is
//   granted if the keys before it permit that, and no key is written anew to get ahead.
// - A request to etcd without a reply binds no key to a lease that lives on. Its lease gets no further keys and
//   no keep-alive; the keys of held locks move to another one at their next renewal.
// - Every grant in etcd reads or compares the base of the epochs in its own transaction. So no later grant has
//   a smaller epoch, though openings raise the base.

// The rooms, in the order in which one learns the store: driver, options, connection, wire, locks, operate.
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
