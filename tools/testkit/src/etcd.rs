//! etcd: a single member, or a cluster of three.

mod client;
mod cluster;
mod kind;
mod network;
mod options;
mod server;

pub use client::EtcdKey;
pub use cluster::EtcdCluster;
pub use kind::EtcdKind;
pub use options::EtcdOptions;
pub use server::EtcdServer;
