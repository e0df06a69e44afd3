//! `mysql:` and `mariadb:`: how to connect, the state beside the locks, and what the server counts.

pub(crate) mod client;
pub(crate) mod stats;
pub(crate) mod tables;
