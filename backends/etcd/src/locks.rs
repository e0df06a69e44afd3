//! Locks: how they are granted, kept, waited for and released.

mod attempt;
pub(crate) mod batch;
pub(crate) mod epochs;
pub(crate) mod expiry;
mod grant;
pub(crate) mod lease;
pub(crate) mod leases;
pub(crate) mod listener;
mod queue;
pub(crate) mod tickets;
pub(crate) mod together;
pub(crate) mod wait;
mod waiters;
