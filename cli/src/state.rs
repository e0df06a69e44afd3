//! The shared state that the locks protect, kept in a store.

mod memory;
mod redis;
mod sqlite;

use std::fmt;
use std::path::Path;

use lockkeeper::{Config, Drivers, FencingToken};

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

/// Opens the locks of `config` to find out which store they are on: gives that store's short name,
/// and the state beside them. `folder` is there to be thrown away, and `number` tells the stores of
/// this run apart.
pub(crate) fn beside(
    config: &Config,
    folder: &Path,
    number: usize,
) -> Result<(&'static str, Box<dyn State>), Failure> {
    let redis = redis::Noting::default();
    let drivers = Drivers::new()
        .with(lockkeeper::local::MemoryDriver)
        .with(lockkeeper::local::SqliteDriver)
        .with(redis.clone());
    let backend = drivers.open(config)?.backend();
    let state: Box<dyn State> = match (backend, redis.door()) {
        ("memory", _) => Box::new(memory::Cells::default()),
        ("sqlite", _) => {
            let file = folder.join(format!("state-{number}.db"));
            Box::new(sqlite::Rows::create(&file)?)
        }
        ("redis", Some(door)) => Box::new(redis::Keys::create(&door, folder, number)?),
        (other, _) => {
            return Err(Failure::Usage(format!(
                "`compare` cannot keep a scenario's data on {other}; use memory:, sqlite: or redis:"
            )));
        }
    };
    Ok((backend, state))
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

    fn keeps(url: &str) {
        let folder = tempfile::tempdir().unwrap();
        let url = url.replace("FOLDER", folder.path().to_str().unwrap());
        let [early, late] = tokens();
        let (_, state) = beside(&Config::from_url(&url).unwrap(), folder.path(), 0).unwrap();
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
            assert_eq!(state.read().unwrap(), 10, "{url}");
        }
    }

    #[test]
    fn every_embedded_store_keeps_the_state_alike() {
        keeps("memory:");
        keeps("sqlite:FOLDER/locks.db");
    }
}
