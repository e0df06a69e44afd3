//! What is said to the server, and what it replies: keys, leases, scripts, errors, its time.

pub(crate) mod failure;
pub(crate) mod keys;
pub(crate) mod lease;
pub(crate) mod scripts;
pub(crate) mod server_clock;
