//! The embedded stores: `memory:` and `sqlite:`.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use memory::{MemoryDriver, MemoryProvider};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteDriver, SqliteProvider};

/// Locks a mutex and ignores poisoning: a panic in a critical section here leaves the data consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
