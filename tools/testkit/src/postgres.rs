//! PostgreSQL, and PgBouncer in front of it.

mod bouncer;
mod client;
mod data;
mod kind;
mod options;
mod server;
mod test_server;
mod user;

pub use bouncer::{PgBouncer, PoolMode};
pub use kind::PostgresKind;
pub use options::PostgresOptions;
pub use server::PostgresServer;
pub(crate) use test_server::start;
