//! Cells that have a revision: stores write several of them if none has changed since it was read.

use crate::error::Error;

/// A cell as it was read.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) value: i64,
    /// The revision at which it was written.
    pub(crate) revision: i64,
}

/// The cells of a run.
pub(crate) trait Cells: Send + Sync {
    /// Reads cells, each by a request.
    fn read_cells(&self, cells: &[u32]) -> Result<Vec<Cell>, Error>;

    /// Writes cells with new values, and adds a user, if no cell has changed since it was read. Returns whether it was
    /// written, and the number of requests.
    fn write_cells(&self, cells: &[(u32, Cell, i64)], user: u32) -> Result<(bool, u64), Error>;
}
