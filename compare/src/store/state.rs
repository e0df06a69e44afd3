//! The shared state that the locks protect.

use lockkeeper::FencingToken;

use crate::error::Error;

/// Some numbered cells, and a list of users.
///
/// Each call is a statement and a transaction of its own. A thread that reads, thinks and writes is
/// therefore protected by nothing but a lock around all of it.
pub(crate) trait State: Send + Sync {
    /// Sets the cells from 0 on to these values, and clears the list of users.
    fn reset(&self, values: &[i64]) -> Result<(), Error>;
    fn read(&self, cell: u32) -> Result<i64, Error>;
    fn write(&self, cell: u32, value: i64) -> Result<(), Error>;
    /// Writes cell 0, unless it was written with a larger token before; returns whether it was
    /// written.
    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error>;
    /// Adds a user to the list.
    fn record(&self, user: u32) -> Result<(), Error>;
    /// Returns how many users are on the list.
    fn recorded(&self) -> Result<i64, Error>;
}
