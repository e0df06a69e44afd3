//! The state beside the locks of a store, as the strategies and the meters need it.

use std::path::Path;
use std::sync::Arc;

use lockkeeper::backends::postgres::PlainClient;

use super::client::ClientConfig;
use super::consul::ConsulKeys;
use super::etcd::EtcdKeys;
use super::memory::Cells;
use super::mysql::{self, MySqlConfig};
use super::postgres::PostgresConfig;
use super::redis::keys::Keys;
use super::redis::stats::Stats;
use super::sql::Rows;
use super::sqlite;
use super::state::State;
use super::zookeeper::ZooKeeperNodes;
use crate::error::Error;
use crate::meter::Counter;

/// The state, by the kind of its store.
pub(crate) enum Data {
    Memory(Arc<Cells>),
    Sqlite(Arc<Rows<rusqlite::Connection>>),
    Redis(Arc<Keys>),
    MySql(Box<MySqlConfig>, Arc<Rows<::mysql::Conn>>),
    Postgres(Box<PostgresConfig>, Arc<Rows<PlainClient>>),
    Etcd(Arc<EtcdKeys>),
    Consul(Arc<ConsulKeys>),
    ZooKeeper(Arc<ZooKeeperNodes>),
}

impl Data {
    /// Creates the state beside the locks of a store. `folder` is thrown away after the run, and the names
    /// of files, tables and keys begin with `prefix`.
    pub(crate) fn create(
        config: &ClientConfig,
        folder: &Path,
        prefix: &str,
    ) -> Result<Self, Error> {
        Ok(match config {
            // The members of a quorum may be stores that keep no data.
            ClientConfig::Memory | ClientConfig::Quorum => Self::Memory(Arc::default()),
            ClientConfig::Sqlite => {
                let rows = sqlite::open(folder.join(format!("{prefix}.db")))?;
                rows.create()?;
                Self::Sqlite(Arc::new(rows))
            }
            ClientConfig::Redis(config) => Self::Redis(Arc::new(Keys::open(config, prefix)?)),
            ClientConfig::MySql(config) => {
                let rows = Arc::new(config.rows(prefix)?);
                // Dropped, and the tables with it, if one of them cannot be created.
                let data = Self::MySql(Box::new(config.clone()), Arc::clone(&rows));
                rows.create()?;
                data
            }
            ClientConfig::Postgres(config) => {
                let rows = Arc::new(config.rows(prefix)?);
                let data = Self::Postgres(Box::new(config.clone()), Arc::clone(&rows));
                rows.create()?;
                data
            }
            ClientConfig::Etcd(config) => Self::Etcd(Arc::new(EtcdKeys::open(config, prefix)?)),
            ClientConfig::Consul(config) => {
                Self::Consul(Arc::new(ConsulKeys::open(config, prefix)?))
            }
            ClientConfig::ZooKeeper(config) => {
                Self::ZooKeeper(Arc::new(ZooKeeperNodes::open(config, prefix)?))
            }
        })
    }

    /// Opens a counter of `commands`, except those for the state, on a connection of its own; `None`
    /// if the store does not count.
    pub(crate) fn counter(
        &self,
        commands: &'static [&'static str],
    ) -> Result<Option<Box<dyn Counter>>, Error> {
        Ok(match self {
            Self::Redis(keys) => {
                let state = Some(Arc::clone(keys));
                Some(Box::new(Stats::open(&keys.config, commands, state)?))
            }
            Self::MySql(config, rows) => Some(Box::new(mysql::Stats::open(config, rows)?)),
            Self::Memory(_)
            | Self::Sqlite(_)
            | Self::Postgres(..)
            | Self::Etcd(_)
            | Self::Consul(_)
            | Self::ZooKeeper(_) => None,
        })
    }

    /// Returns the state as the scenarios use it.
    pub(crate) fn state(&self) -> Arc<dyn State> {
        match self {
            Self::Memory(cells) => Arc::<Cells>::clone(cells),
            Self::Sqlite(rows) => Arc::<Rows<_>>::clone(rows),
            Self::Redis(keys) => Arc::<Keys>::clone(keys),
            Self::MySql(_, rows) => Arc::<Rows<_>>::clone(rows),
            Self::Postgres(_, rows) => Arc::<Rows<_>>::clone(rows),
            Self::Etcd(keys) => Arc::<EtcdKeys>::clone(keys),
            Self::Consul(keys) => Arc::<ConsulKeys>::clone(keys),
            Self::ZooKeeper(nodes) => Arc::<ZooKeeperNodes>::clone(nodes),
        }
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        match self {
            // What the server keeps. If it does not reply, the tables stay, and the keys expire.
            Self::MySql(_, rows) => drop(rows.remove()),
            Self::Postgres(_, rows) => drop(rows.remove()),
            Self::Redis(keys) => drop(keys.remove()),
            Self::Etcd(keys) => drop(keys.remove()),
            Self::Consul(keys) => drop(keys.remove()),
            Self::ZooKeeper(nodes) => drop(nodes.remove()),
            // The file is removed with its folder.
            Self::Memory(_) | Self::Sqlite(_) => {}
        }
    }
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
        let (config, _) = ClientConfig::find(&Config::from_url(&url).unwrap()).unwrap();
        let data = Data::create(&config, folder.path(), "state").unwrap();
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
