//! Redis and Valkey.

mod client;
mod kind;
mod options;
mod server;

pub use client::{RedisClient, Reply};
pub use kind::RedisKind;
pub use options::RedisOptions;
pub use server::RedisServer;
