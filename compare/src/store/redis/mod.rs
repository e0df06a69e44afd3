//! `redis:`, `rediss:` and `unix:`: how to connect, the state beside the locks, and what the server
//! counts.

pub(crate) mod client;
pub(crate) mod keys;
pub(crate) mod stats;
