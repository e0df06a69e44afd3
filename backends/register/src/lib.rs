//! Locks over any store that can read an entry, and write it if it has not changed since.
//!
//! A backend implements [`RegisterStore`]: how it reads, writes, keeps a session and waits. [`RegisterProvider`] has the
//! rest. The entry of a name contains its leases, its queue and its last epoch. A pure function decides a request
//! (`decide.rs`), and a write under the entry's version makes the decision true.
//!
//! # What must never be
//! - **A write has the version as its condition that its decision was made from.** So no write that arrives late does harm.
//! - **A lease names a session, and its write has that session's life as a further condition.** An ended session never
//!   lives again, so whoever sees its end may remove its leases.
//! - **No entry is removed before the floor of epochs is raised to its last epoch**, and no entry is made under an earlier
//!   floor (`sweep.rs`).
//! - **After an unknown write the entry is read again** before anything else is tried: its owner shows what came of it.
//! - **No clock of a host ends another process's lease.** By its own clock, a process only removes its own leases, and first
//!   waiters that do not take a free name.

// The store of the tests names this crate.
#[cfg(test)]
extern crate self as lockkeeper_register;

mod admin;
mod decide;
mod ends;
mod entry;
mod exchange;
mod expiry;
mod free_names;
mod key;
mod lease;
#[cfg(test)]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the suites use more of this store than the unit tests"
)]
#[path = "../tests/map_store/mod.rs"]
mod map_store;
mod provider;
mod register;
mod round;
mod sessions;
mod store;
mod sweep;
pub mod table;
mod task;
mod wait;
mod watch;

pub use key::Key;
pub use lease::RegisterLease;
pub use provider::RegisterProvider;
pub use store::{Call, Entry, Read, RegisterStore, SessionId, Version, View, Write};
