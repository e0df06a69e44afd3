//! The state of `memory:`: plain cells.

use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper::FencingToken;

use super::State;
use crate::failure::Failure;

/// Each access is whole, as a statement of a database is; nothing is between two of them.
#[derive(Debug, Default)]
pub(crate) struct Cells(Mutex<Values>);

#[derive(Debug, Default)]
struct Values {
    number: i64,
    token: i64,
    users: Vec<u32>,
}

impl Cells {
    fn values(&self) -> MutexGuard<'_, Values> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State for Cells {
    fn reset(&self, value: i64) -> Result<(), Failure> {
        *self.values() = Values {
            number: value,
            ..Values::default()
        };
        Ok(())
    }

    fn read(&self) -> Result<i64, Failure> {
        Ok(self.values().number)
    }

    fn write(&self, value: i64) -> Result<(), Failure> {
        self.values().number = value;
        Ok(())
    }

    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure> {
        let mut values = self.values();
        let fresh = token.as_i64() >= values.token;
        if fresh {
            values.number = value;
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
