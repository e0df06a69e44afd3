//! The shared state that the locks protect.

use std::fmt;

use lockkeeper::FencingToken;

use crate::error::Failure;

/// Some numbers, and a list of users. Each call is a statement and a transaction of its own, so a
/// thread that reads, thinks and writes is protected by nothing but a lock around all of it.
pub(crate) trait State: fmt::Debug + Send + Sync {
    /// Starts over: the cells from 0 on have these values, and there are no users.
    fn reset(&self, values: &[i64]) -> Result<(), Failure>;

    /// The number in a cell.
    fn read(&self, cell: u32) -> Result<i64, Failure>;

    /// Sets the number in a cell.
    fn write(&self, cell: u32, value: i64) -> Result<(), Failure>;

    /// Sets the number in the first cell, unless it was set under a larger token before; says
    /// whether it did.
    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure>;

    /// Adds a user to the list.
    fn record(&self, user: u32) -> Result<(), Failure>;

    /// How many users are on the list.
    fn recorded(&self) -> Result<i64, Failure>;
}
