//! The embedded stores: `memory:` and `sqlite:`.

mod memory;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(test)]
mod testing;

pub use memory::{MemoryDriver, MemoryProvider};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteDriver, SqliteProvider};
