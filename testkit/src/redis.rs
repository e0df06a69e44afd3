//! Redis and Valkey.

mod client;
mod kind;
mod options;
#[cfg(feature = "proxy")]
mod sentinel;
mod server;

pub use client::{RedisClient, Reply};
pub use kind::RedisKind;
pub use options::RedisOptions;
#[cfg(feature = "proxy")]
pub use sentinel::SentinelSet;
pub use server::RedisServer;
