//! The ZooKeeper backend of [`lockkeeper`](https://docs.rs/lockkeeper): locks that outlive the loss of a server.
//!
//! Each name has a node, whose value contains the leases and the queue of waiters. A lease ends with the ZooKeeper
//! session that it names. `lockkeeper-register` decides who is granted a name.

// What must never be otherwise:
// - A session is kept only by a connection that is opened again within the session, and a write on it that most members
//   have done. A member that is cut off still answers for some seconds, also if it was the leader, and the time of the
//   session goes on elsewhere. The first makes the leader restart the time, and the second proves that it is the leader.
// - A version names one write: it has a number that an entry gets when it is made, which every write checks, beside the
//   version of the node's value. ZooKeeper counts the latter from 0 again in a node that was made anew.
// - No connection goes to a member that knows less than this process has seen.

// The modules in reading order: driver, options, wire, connection, store, operate.
mod connection;
mod driver;
mod operate;
mod options;
mod plain;
mod store;
mod wire;

pub use driver::ZooKeeperDriver;
pub use options::ZooKeeperOptions;
#[doc(hidden)]
pub use plain::{PlainClient, PlainWrite};
pub use store::ZooKeeperStore;

const BACKEND: &str = "zookeeper";
