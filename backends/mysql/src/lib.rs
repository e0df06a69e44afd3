//! The MySQL and MariaDB backend: `mysql:` and `mariadb:`, for MySQL from 5.7.8 on and MariaDB from
//! 10.1.1 on.
//!
//! A lock is a named lock (`GET_LOCK`) of a session that does nothing else. The server itself ends
//! that session, and with it the lock, after it was idle for the lease's ttl in whole seconds. Each
//! renewal is a query on the session. Free names share sessions that already hold names. Only a
//! waiting caller has its own session.
//!
//! Epochs are the server's `UUID_SHORT()`: the second of its start and a counter. They grow over a
//! restart, however quick it is, unless the server's clock was set back.

// What must never be otherwise:
// - No text of a user becomes SQL. Only an `EncodedName` is pasted into a statement.

mod connection;
mod driver;
mod failure;
mod names;
mod operate;
mod options;
mod provider;
mod statements;
mod table;

pub use driver::MySqlDriver;
pub use mysql::{Conn, Opts};
pub use options::MySqlOptions;
pub use provider::MySqlProvider;
pub use table::open_table;
