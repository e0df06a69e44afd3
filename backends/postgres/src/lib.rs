//! The PostgreSQL backend: `postgres:` and `postgresql:`, for PostgreSQL from 14 on.
//!
//! A lock is an advisory lock of a session that does nothing else. The server itself ends that session, and with it
//! the lock, after it was idle for the lease's ttl. Each renewal is a statement on the session. Free names share
//! sessions that already hold names. Only a waiting caller has its own session.
//!
//! Epochs are the server's clock, read while the lock is held.

// What must never be otherwise:
// - A PostgreSQL session has a name in at most one mode. The server would grant a session an exclusive lock
//   beside its own shared one.

mod connection;
mod driver;
mod failure;
mod locks;
mod names;
mod operate;
mod options;
mod plain;
mod provider;
mod statements;
mod table;

pub use driver::PostgresDriver;
pub use lockkeeper_remote::Transport;
pub use options::PostgresOptions;
#[doc(hidden)]
pub use plain::{PlainClient, PlainError, PlainReply};
pub use provider::PostgresProvider;
pub use table::open_table;
