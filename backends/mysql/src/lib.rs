//! The MySQL and MariaDB backend: `mysql:` and `mariadb:`, for MySQL from 5.7.5 on and MariaDB from
//! 10.0.2 on.
//!
//! A lock is a named lock (`GET_LOCK`) of a session that does nothing else. The server itself ends
//! that session, and with it the lock, when it was idle for the lease's ttl in whole seconds; each
//! renewal is a question on it. Names that are free are taken on sessions that already hold some;
//! only who waits has a session alone.
//!
//! Epochs are the server's `UUID_SHORT()`: the second of its start and a counter. They grow over a
//! restart however quick it is, unless the server's clock was set back over it.

mod acquire;
mod admin;
mod connection;
mod detached;
mod driver;
mod examine;
mod failure;
mod lease;
mod names;
mod opening;
mod options;
mod provider;
mod session;
mod statements;
mod store;
mod wire;

pub use driver::MySqlDriver;
pub use mysql::Opts;
pub use options::MySqlOptions;
pub use provider::MySqlProvider;

/// The store's short name.
const BACKEND: &str = "mysql";
