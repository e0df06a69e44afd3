//! Consul: a single server, or a cluster of three.

mod client;
mod cluster;
mod kind;
mod options;
mod server;
mod test_server;

pub use client::ConsulKey;
pub use cluster::ConsulCluster;
pub use kind::ConsulKind;
pub use options::ConsulOptions;
pub use server::ConsulServer;
pub(crate) use test_server::{start, start_cluster};
