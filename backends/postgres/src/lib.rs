//! The PostgreSQL backend: `postgres:` and `postgresql:`, for PostgreSQL from 14 on.
//!
//! A lock is an advisory lock of a session that does nothing else. The server itself ends that session, and with it
//! the lock, after it was idle for the lease's ttl. Each renewal is a statement on it. Free names are taken on sessions
//! that already hold some; only a caller that waits has a session of its own.
//!
//! Epochs are the server's clock, read while the lock is held.

// What must never be otherwise:
// - A PostgreSQL session has a name in one mode at most. The server grants a session an exclusive lock beside
//   its own shared one.

mod admin;
mod connection;
mod connector;
mod driver;
mod epoch;
mod examine;
mod failure;
mod locks;
mod login;
mod names;
mod opening;
mod options;
mod plain;
mod provider;
mod shown;
mod statements;
mod store;
mod wire;

pub use driver::PostgresDriver;
pub use lockkeeper_remote::Transport;
pub use options::PostgresOptions;
#[doc(hidden)]
pub use plain::{PlainClient, PlainError, PlainReply};
pub use provider::PostgresProvider;

/// The backend's name in errors and capabilities.
const BACKEND: &str = "postgres";
