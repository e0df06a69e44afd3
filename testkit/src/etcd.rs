//! etcd: a single member, or a cluster of three.

mod client;
mod kind;
mod options;
mod server;

pub use client::EtcdKey;
pub use kind::EtcdKind;
pub use options::EtcdOptions;
pub use server::EtcdServer;
