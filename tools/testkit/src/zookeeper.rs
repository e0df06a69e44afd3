//! ZooKeeper: a single server, or an ensemble of three.

mod client;
mod ensemble;
mod kind;
mod options;
mod server;
mod test_server;

pub use client::ZooKeeperClient;
pub use ensemble::ZooKeeperEnsemble;
pub use kind::ZooKeeperKind;
pub use options::ZooKeeperOptions;
pub use server::ZooKeeperServer;
pub(crate) use test_server::{start, start_ensemble};
