//! The Consul backend of [`lockkeeper`](https://docs.rs/lockkeeper): locks in the key-value store of a Consul cluster.
//!
//! The entry of a name is a key with its holders and waiters, written by check-and-set: see
//! [`lockkeeper-register`](https://docs.rs/lockkeeper-register). A lease lives as long as a session of Consul.

// What must never be otherwise:
// - No health check and no node ends a session, but its ttl alone. An agent that restarts, or a gossip that fails for a
//   moment, must free no lock. So a session has no checks, and belongs to a node that no agent runs on.
// - A session is known to have ended if its key is absent. So the key is made before anybody learns of the session.
// - Every read is a consistent one, for which the leader asks the others. A server that has just become the leader has
//   not carried out its log yet: it would tell that entries are absent and sessions have ended. And one that was
//   stopped may take itself for the leader when it resumes, and renew a session that another leader has ended. So a
//   renewal counts only if the read after it finds the session.

// The modules in reading order: driver, options, connection, wire, store, operate.
mod connection;
mod driver;
mod operate;
mod options;
mod plain;
mod store;
mod wire;

pub use driver::ConsulDriver;
pub use options::ConsulOptions;
#[doc(hidden)]
pub use plain::PlainClient;
pub use store::ConsulStore;

const BACKEND: &str = "consul";
