//! The shared state that the locks protect, kept in a store; and how this comparison itself reaches
//! that store.

pub(crate) mod memory;
pub(crate) mod mysql;
pub(crate) mod redis;
pub(crate) mod sqlite;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use lockkeeper::{Config, Drivers, FencingToken};

use crate::failure::Failure;
use crate::meter::Counter;

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

/// What the strategies that need more than [`State`] have to know of it.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Of `memory:`.
    Memory(Arc<memory::Cells>),
    /// Of `sqlite:`.
    Sqlite(Arc<sqlite::Rows>),
    /// Of `redis:`, `rediss:` and `unix:`.
    Redis(Arc<redis::Keys>),
    /// Of `mysql:` and `mariadb:`.
    MySql(Arc<mysql::Tables>),
}

impl Data {
    /// Makes the state beside the locks that are behind `door`. `folder` is there to be thrown
    /// away, and `number` tells the stores of this run apart.
    pub(crate) fn create(door: &Door, folder: &Path, number: usize) -> Result<Self, Failure> {
        Ok(match door {
            Door::Memory => Self::Memory(Arc::default()),
            Door::Sqlite => {
                let file = folder.join(format!("state-{number}.db"));
                Self::Sqlite(Arc::new(sqlite::Rows::create(&file)?))
            }
            Door::Redis(door) => Self::Redis(Arc::new(redis::Keys::create(door, folder, number)?)),
            Door::MySql(door) => {
                Self::MySql(Arc::new(mysql::Tables::create(door, folder, number)?))
            }
        })
    }

    /// What counts the commands that are named so, other than those for this; `None` where nobody
    /// does. It has a connection of its own.
    pub(crate) fn counter<'a>(
        &'a self,
        door: &Door,
        commands: &'static [&'static str],
    ) -> Result<Option<Box<dyn Counter + 'a>>, Failure> {
        match (self, door) {
            (Self::Redis(keys), Door::Redis(door)) => {
                let tally = Some(keys.sent());
                Ok(Some(Box::new(redis::Stats::open(door, commands, tally)?)))
            }
            (Self::MySql(tables), Door::MySql(door)) => {
                Ok(Some(Box::new(mysql::Stats::open(door, tables.rows())?)))
            }
            _ => Ok(None),
        }
    }

    /// As what the scenarios use.
    pub(crate) fn state(&self) -> Arc<dyn State> {
        match self {
            Self::Memory(cells) => Arc::clone(cells) as Arc<dyn State>,
            Self::Sqlite(rows) => Arc::clone(rows) as Arc<dyn State>,
            Self::Redis(keys) => Arc::clone(keys) as Arc<dyn State>,
            Self::MySql(tables) => Arc::new(tables.rows().clone()),
        }
    }
}

/// Where the locks are, for those who go there without this library.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    /// In this process.
    Memory,
    /// In a file.
    Sqlite,
    /// On a Redis or Valkey server.
    Redis(redis::Door),
    /// On a MySQL or MariaDB server.
    MySql(mysql::Door),
}

impl Door {
    /// Opens the locks of `config` to find out which store they are on, and where that is.
    pub(crate) fn find(config: &Config) -> Result<Self, Failure> {
        let (redis, mysql) = (redis::Noting::default(), mysql::Noting::default());
        let drivers = Drivers::new()
            .with(lockkeeper::local::MemoryDriver)
            .with(lockkeeper::local::SqliteDriver)
            .with(redis.clone())
            .with(mysql.clone());
        let backend = drivers.open(config)?.backend();
        match (backend, redis.door(), mysql.door()?) {
            ("memory", ..) => Ok(Self::Memory),
            ("sqlite", ..) => Ok(Self::Sqlite),
            ("redis", Some(door), _) => Ok(Self::Redis(door)),
            ("mysql", _, Some(door)) => Ok(Self::MySql(door)),
            (other, ..) => Err(Failure::Usage(format!(
                "`compare` cannot keep a scenario's data on {other}; use memory:, sqlite:, redis: \
                 or mysql:"
            ))),
        }
    }

    /// The store's short name, for rows.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis(_) => "redis",
            Self::MySql(door) => door.label(),
        }
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

    fn keeps(url: &str) {
        let folder = tempfile::tempdir().unwrap();
        let url = url.replace("FOLDER", folder.path().to_str().unwrap());
        let [early, late] = tokens();
        let door = Door::find(&Config::from_url(&url).unwrap()).unwrap();
        let state = Data::create(&door, folder.path(), 0).unwrap().state();
        for _again in 0..2 {
            state.reset(&[7, 70]).unwrap();
            assert_eq!((state.read(0).unwrap(), state.recorded().unwrap()), (7, 0));
            state.write(0, 8).unwrap();
            state.write(1, 71).unwrap();
            state.record(1).unwrap();
            state.record(2).unwrap();
            assert_eq!((state.read(0).unwrap(), state.recorded().unwrap()), (8, 2));
            assert_eq!(state.read(1).unwrap(), 71);
            assert!(state.write_fenced(9, late).unwrap());
            assert!(state.write_fenced(10, late).unwrap());
            assert!(!state.write_fenced(11, early).unwrap());
            assert_eq!(state.read(0).unwrap(), 10, "{url}");
        }
    }

    #[test]
    fn every_embedded_store_keeps_the_state_alike() {
        keeps("memory:");
        keeps("sqlite:FOLDER/locks.db");
    }
}
