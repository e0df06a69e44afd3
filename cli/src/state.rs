//! The shared state that the locks protect, kept in a store.

mod memory;
mod sqlite;

use std::fmt;
use std::path::Path;

use lockkeeper::FencingToken;

use crate::failure::Failure;

/// A number and a list of users. Each call is a statement and a transaction of its own, so a
/// thread that reads, thinks and writes is protected by nothing but a lock around all of it.
pub(crate) trait State: fmt::Debug + Send + Sync {
    /// Starts over: the number is `value`, and there are no users.
    fn reset(&self, value: i64) -> Result<(), Failure>;

    /// The number.
    fn read(&self) -> Result<i64, Failure>;

    /// Sets the number.
    fn write(&self, value: i64) -> Result<(), Failure>;

    /// Sets the number, unless it was set under a larger token before; says whether it did.
    fn write_fenced(&self, value: i64, token: FencingToken) -> Result<bool, Failure>;

    /// Adds a user to the list.
    fn record(&self, user: u32) -> Result<(), Failure>;

    /// How many users are on the list.
    fn recorded(&self) -> Result<i64, Failure>;
}

/// The state beside the locks of `backend`; `folder` is there to be thrown away, and `number`
/// tells the stores of this run apart.
pub(crate) fn beside(
    backend: &str,
    folder: &Path,
    number: usize,
) -> Result<Box<dyn State>, Failure> {
    match backend {
        "memory" => Ok(Box::new(memory::Cells::default())),
        "sqlite" => {
            let file = folder.join(format!("state-{number}.db"));
            Ok(Box::new(sqlite::Rows::create(&file)?))
        }
        other => Err(Failure::Usage(format!(
            "`compare` cannot keep a scenario's data on {other}; use memory: or sqlite:"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::LockKeeper;

    /// Two tokens, the smaller first.
    fn tokens() -> [FencingToken; 2] {
        let keeper: LockKeeper = lockkeeper::open("memory:").unwrap();
        [(); 2].map(|()| keeper.lock("x").unwrap().token())
    }

    #[test]
    fn every_store_keeps_the_state_alike() {
        let folder = tempfile::tempdir().unwrap();
        let [early, late] = tokens();
        for backend in ["memory", "sqlite"] {
            let state = beside(backend, folder.path(), 0).unwrap();
            for _again in 0..2 {
                state.reset(7).unwrap();
                assert_eq!((state.read().unwrap(), state.recorded().unwrap()), (7, 0));
                state.write(8).unwrap();
                state.record(1).unwrap();
                state.record(2).unwrap();
                assert_eq!((state.read().unwrap(), state.recorded().unwrap()), (8, 2));
                assert!(state.write_fenced(9, late).unwrap());
                assert!(state.write_fenced(10, late).unwrap());
                assert!(!state.write_fenced(11, early).unwrap());
                assert_eq!(state.read().unwrap(), 10, "{backend}");
            }
        }
    }
}
