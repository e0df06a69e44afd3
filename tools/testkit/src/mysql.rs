//! MySQL and MariaDB.

#[cfg(feature = "mysql")]
mod client;
mod data;
mod kind;
mod options;
mod server;
#[cfg(feature = "mysql")]
mod test_server;

#[cfg(feature = "mysql")]
pub use client::{MySqlClient, MySqlSession};
pub use kind::MySqlKind;
pub use options::MySqlOptions;
pub use server::MySqlServer;
#[cfg(feature = "mysql")]
pub(crate) use test_server::start;
