//! The quorum store, `quorum:?member=URL&member=URL&member=URL`: a lock is held by a majority of three or five
//! independent stores, and outlives the loss of the others.
//!
//! A caller asks all members at the same time to grant the name with one epoch, and has the lock if a majority
//! does. Two majorities have a member in common. That member grants only growing epochs, so the tokens of a name
//! grow. While the name is not free, the caller waits in the queue of the first member. When that member grants the
//! name, the caller asks the others for the same epoch.

// What must never be otherwise:
// - A quorum's grant is a majority with one epoch. A lease with another epoch excludes others, but is no vote.
// - A lease that a member grants again counts if it came while the last renewal of a majority was valid.
// - A member that forgot its locks grants nothing until they have expired, so no ttl is longer than
//   `restart_grace`.

mod acquire;
mod admin;
mod ballot;
mod driver;
mod epochs;
mod hold;
mod member;
mod open;
mod provider;
mod worker;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use driver::QuorumDriver;
pub use hold::QuorumLease;
pub use open::QuorumMember;
pub use provider::QuorumProvider;

/// The backend's name in errors and capabilities.
const BACKEND: &str = "quorum";

/// Locks a mutex and ignores poisoning: a panic in a critical section here leaves the data consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
