//! The state beside the locks of a store, as the strategies and the meters need it.

use std::path::Path;
use std::sync::Arc;

use super::client::ClientConfig;
use super::memory::Cells;
use super::redis::keys::Keys;
use super::sql::Tables;
use super::state::State;
use super::{mysql, redis, sqlite};
use crate::error::Error;
use crate::meter::Counter;

/// The state, by the kind of its store.
pub(crate) enum Data {
    Memory(Arc<Cells>),
    Sqlite(Tables<rusqlite::Connection>),
    Redis(Arc<Keys>),
    MySql(Tables<::mysql::Conn>),
}

impl Data {
    /// Creates the state beside the locks of a store. `folder` is thrown away after the run, and
    /// `number` tells the stores of the run apart.
    pub(crate) fn create(
        config: &ClientConfig,
        folder: &Path,
        number: usize,
    ) -> Result<Self, Error> {
        Ok(match config {
            ClientConfig::Memory => Self::Memory(Arc::default()),
            ClientConfig::Sqlite => {
                let file = folder.join(format!("state-{number}.db"));
                Self::Sqlite(sqlite::create(file)?)
            }
            ClientConfig::Redis(config) => {
                let prefix = format!("lockkeeper-compare-{}-{number}", unique_name(folder)?);
                Self::Redis(Arc::new(Keys::create(config, &prefix)?))
            }
            ClientConfig::MySql(config) => {
                let prefix = format!("lockkeeper_compare_{}_{number}", unique_name(folder)?);
                Self::MySql(config.create_tables(prefix)?)
            }
        })
    }

    /// Opens a counter of `commands`, except those for the state, on a connection of its own; `None`
    /// if the store does not count.
    pub(crate) fn counter<'a>(
        &'a self,
        config: &ClientConfig,
        commands: &'static [&'static str],
    ) -> Result<Option<Box<dyn Counter + 'a>>, Error> {
        Ok(match (self, config) {
            (Self::Redis(keys), ClientConfig::Redis(config)) => {
                let stats = redis::stats::Stats::open(config, commands, Some(keys.sent()))?;
                Some(Box::new(stats))
            }
            (Self::MySql(tables), ClientConfig::MySql(config)) => {
                Some(Box::new(mysql::Stats::open(config, tables.rows())?))
            }
            _ => None,
        })
    }

    /// Returns the state as the scenarios use it.
    pub(crate) fn state(&self) -> Arc<dyn State> {
        match self {
            Self::Memory(cells) => Arc::<Cells>::clone(cells),
            Self::Sqlite(tables) => Arc::new(tables.rows().clone()),
            Self::Redis(keys) => Arc::<Keys>::clone(keys),
            Self::MySql(tables) => Arc::new(tables.rows().clone()),
        }
    }
}

/// Returns a name that no other run has. The folder's own name is unique on this machine only, so
/// the name is random; SQL needs it in lower case.
fn unique_name(folder: &Path) -> Result<String, Error> {
    let unique = tempfile::Builder::new()
        .rand_bytes(16)
        .prefix("")
        .tempdir_in(folder)
        .map_err(|error| Error::failed(format!("cannot make a throw-away folder: {error}")))?;
    let name = unique.path().file_name().unwrap_or_default();
    Ok(name.to_string_lossy().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Config, FencingToken, LockKeeper};

    /// Returns two tokens, the smaller one first.
    fn tokens() -> [FencingToken; 2] {
        let keeper: LockKeeper = lockkeeper::open("memory:").unwrap();
        [(); 2].map(|()| keeper.lock("x").unwrap().token())
    }

    fn assert_keeps_state(url: &str) {
        let folder = tempfile::tempdir().unwrap();
        let url = url.replace("FOLDER", folder.path().to_str().unwrap());
        let [early, late] = tokens();
        let config = ClientConfig::find(&Config::from_url(&url).unwrap()).unwrap();
        let data = Data::create(&config, folder.path(), 0).unwrap();
        let state = data.state();
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
    fn embedded_stores_keep_the_same_state() {
        assert_keeps_state("memory:");
        assert_keeps_state("sqlite:FOLDER/locks.db");
    }
}
