//! etcd: a single member, or a cluster of three.

mod client;
mod cluster;
mod kind;
mod options;
mod server;
mod test_server;

pub use client::EtcdKey;
pub use cluster::EtcdCluster;
pub use kind::EtcdKind;
pub use options::EtcdOptions;
pub use server::EtcdServer;
pub(crate) use test_server::{start, start_cluster};
