//! The state of `memory:`: plain cells.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper::FencingToken;

use super::state::State;
use crate::error::Failure;

/// Each access is whole, as a statement of a database is; nothing is between two of them.
#[derive(Debug, Default)]
pub(crate) struct Cells(Mutex<Values>);

#[derive(Debug, Default)]
struct Values {
    cells: Vec<i64>,
    token: i64,
    users: Vec<u32>,
}

impl Values {
    fn cell(&mut self, cell: u32) -> Result<&mut i64, Failure> {
        let index = usize::try_from(cell).unwrap_or(usize::MAX);
        let there = self.cells.get_mut(index);
        there.ok_or_else(|| Failure::Failed(format!("there is no cell {cell}")))
    }
}

impl Cells {
    fn values(&self) -> MutexGuard<'_, Values> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State for Cells {
    fn reset(&self, values: &[i64]) -> Result<(), Failure> {
        *self.values() = Values {
            cells: values.to_vec(),
            ..Values::default()
        };
        Ok(())
    }

    fn read(&self, cell: u32) -> Result<i64, Failure> {
        Ok(*self.values().cell(cell)?)
    }

    fn write(&self, cell: u32, value: i64) -> Result<(), Failure> {
        *self.values().cell(cell)? = value;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure> {
        let mut values = self.values();
        let fresh = token.as_i64() >= values.token;
        if fresh {
            *values.cell(0)? = value;
            values.token = token.as_i64();
        }
        Ok(fresh)
    }

    fn record(&self, user: u32) -> Result<(), Failure> {
        self.values().users.push(user);
        Ok(())
    }

    fn recorded(&self) -> Result<i64, Failure> {
        Ok(i64::try_from(self.values().users.len()).unwrap_or(i64::MAX))
    }
}
