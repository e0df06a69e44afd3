//! The state beside the locks of a store, as what the strategies and the meters need of it.

use std::path::Path;
use std::sync::Arc;

use super::client::Door;
use super::state::State;
use super::{memory, mysql, redis, sqlite};
use crate::error::Failure;
use crate::meter::Counter;

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

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Config, FencingToken, LockKeeper};

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
