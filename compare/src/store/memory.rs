//! The state of `memory:`: plain cells.

use lockkeeper::FencingToken;
use parking_lot::Mutex;

use super::state::State;
use crate::error::Error;

/// Cells in memory. Each access is atomic, as a statement of a database is.
#[derive(Default)]
pub(crate) struct Cells(Mutex<Values>);

#[derive(Default)]
struct Values {
    cells: Vec<i64>,
    token: i64,
    users: Vec<u32>,
}

impl Values {
    fn cell(&mut self, cell: u32) -> Result<&mut i64, Error> {
        let index = usize::try_from(cell).unwrap_or(usize::MAX);
        let value = self.cells.get_mut(index);
        value.ok_or_else(|| Error::failed(format!("there is no cell {cell}")))
    }
}

impl State for Cells {
    fn reset(&self, values: &[i64]) -> Result<(), Error> {
        *self.0.lock() = Values {
            cells: values.to_vec(),
            ..Values::default()
        };
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Error> {
        Ok(*self.0.lock().cell(cell)?)
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Error> {
        *self.0.lock().cell(cell)? = value;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Error> {
        let mut values = self.0.lock();
        let is_current = token.as_i64() >= values.token;
        if is_current {
            *values.cell(0)? = value;
            values.token = token.as_i64();
        }
        Ok(is_current)
    }

    fn record(&self, user: u32) -> Result<(), Error> {
        self.0.lock().users.push(user);
        Ok(())
    }

    fn recorded(&self) -> Result<i64, Error> {
        Ok(i64::try_from(self.0.lock().users.len()).unwrap_or(i64::MAX))
    }
}
