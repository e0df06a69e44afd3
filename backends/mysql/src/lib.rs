//! The MySQL and MariaDB backend: `mysql:` and `mariadb:`, for MySQL from 5.7.8 on and MariaDB from
//! 10.1.1 on.
//!
//! A lock is a named lock (`GET_LOCK`) of a session that does nothing else. The server itself ends
//! that session, and with it the lock, after it was idle for the lease's ttl in whole seconds. Each
//! renewal is a query on it. Free names are taken on sessions that already hold some; only a caller
//! that waits has a session of its own. A shared lock is one of several such names beside the lock's.
//!
//! Epochs are the server's `UUID_SHORT()`: the second of its start and a counter. They grow over a
//! restart however quick it is, unless the server's clock was set back over it.

// What must never be otherwise:
// - A MySQL reader takes a slot only while its session holds the lock's name, and a writer looks at the slots
//   while it holds that. Every provider with a shared lease has a guardian, which holds the namespace's flag or
//   waits for it in the server. A writer looks at the flag after it took the name.
// - A MySQL permit is a slot and its lease, two named locks that are taken under the semaphore's name. The
//   first waiter keeps the bell; it waits for slot 0, and a release of another slot ends that wait by KILL
//   QUERY.
// - No text of a user becomes SQL. Only an `EncodedName` is put into a statement as text.

mod admin;
mod connection;
mod connector;
mod dialect;
mod driver;
mod examine;
mod failure;
mod guardian;
mod locks;
mod names;
mod opening;
mod options;
mod permits;
mod provider;
mod readers;
mod semaphore;
mod shared;
mod statements;
mod store;
mod supplied;
mod wire;

pub use driver::MySqlDriver;
pub use mysql::{Conn, Opts};
pub use options::MySqlOptions;
pub use provider::MySqlProvider;

/// The backend's name in errors and capabilities.
const BACKEND: &str = "mysql";
