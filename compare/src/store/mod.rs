//! The stores of a comparison, each with the state that the locks protect.

pub(crate) mod cells;
pub(crate) mod client;
pub(crate) mod consul;
pub(crate) mod data;
pub(crate) mod etcd;
mod memory;
pub(crate) mod mysql;
pub(crate) mod pool;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod spec;
pub(crate) mod sql;
mod sqlite;
pub(crate) mod state;
pub(crate) mod zookeeper;

use std::path::Path;
use std::time::Duration;

use lockkeeper::Capability;
use lockkeeper::Config;
use lockkeeper::backend::Capabilities;

use self::client::ClientConfig;
use self::data::Data;
use self::redis::client::RedisConfig;
use self::redis::stats::Stats;
use self::spec::{StoreSettings, StoreSpec};
use crate::error::Error;
use crate::meter::Counter;
use crate::random::random;

/// Everything that a program needs to lock on a store.
pub(crate) struct StoreHandle {
    pub(crate) settings: StoreSettings,
    /// What this library opens.
    pub(crate) config: Config,
    /// What other clients connect to.
    pub(crate) client: ClientConfig,
    /// What this library can do there.
    pub(crate) capabilities: Capabilities,
    /// The members of a quorum that was started here, which `redlock` uses, too.
    pub(crate) members: Vec<RedisConfig>,
}

impl StoreHandle {
    /// Returns how much longer than its ttl the store may keep the lock of a dead holder.
    pub(crate) fn grace(&self) -> Duration {
        const GRACE: Duration = Duration::from_secs(1);
        match &self.client {
            // Sessions end at multiples of tickTime, of which the shortest session has two by default.
            ClientConfig::ZooKeeper(_) => GRACE + self.capabilities.min_ttl() / 2,
            _ => GRACE,
        }
    }

    /// Opens the store once, to find out what it is.
    pub(crate) fn open(settings: StoreSettings) -> Result<Self, Error> {
        let config = settings.config()?;
        let shown = format!("`{}`", config.url());
        let found = ClientConfig::find(&config).map_err(|error| error.about(&shown))?;
        let (client, capabilities) = found;
        let members = settings.member_ports.iter().copied();
        let members = members.map(RedisConfig::local);
        Ok(Self {
            members: members.collect::<Result<_, Error>>()?,
            settings,
            config,
            client,
            capabilities,
        })
    }
}

/// A store that could be opened, and the state beside its locks.
pub(crate) struct Store {
    /// The store's name in reports: the backend's, numbered if there are several of a kind.
    pub(crate) label: String,
    pub(crate) handle: StoreHandle,
    pub(crate) data: Data,
}

impl Store {
    /// Opens all stores. What they need on disk is in `folder`.
    pub(crate) fn open_all(specs: Vec<StoreSpec>, folder: &Path) -> Result<Vec<Self>, Error> {
        let mut stores: Vec<Self> = Vec::new();
        for (number, mut spec) in specs.into_iter().enumerate() {
            let origin = spec.origin.clone();
            spec.settings.state = format!("lockkeeper_compare_{:016x}_{number}", random());
            // A URL that cannot be parsed is not shown, since there may be a password in it.
            let handle = StoreHandle::open(spec.with_memory_name(number).settings)
                .map_err(|error| error.about(&origin))?;
            let kind = handle.client.label();
            let same = stores.iter();
            let same = same.filter(|other| other.handle.client.label() == kind);
            let label = match same.count() {
                0 => kind.to_owned(),
                before => format!("{kind}-{}", before + 1),
            };
            let data = Data::create(&handle.client, folder, &handle.settings.state);
            stores.push(Self {
                data: data.map_err(|error| error.about(&label))?,
                label,
                handle,
            });
        }
        Ok(stores)
    }

    /// Tells whether another process can see the store.
    pub(crate) fn is_cross_process(&self) -> bool {
        self.handle.capabilities.has(Capability::CrossProcess)
    }

    /// Opens the counters of these commands, each on a connection of its own.
    pub(crate) fn counters(
        &self,
        commands: &'static [&'static str],
    ) -> Result<Vec<Box<dyn Counter>>, Error> {
        let counter = self.data.counter(commands)?;
        let mut counters: Vec<_> = counter.into_iter().collect();
        for config in &self.handle.members {
            counters.push(Box::new(Stats::open(config, commands, None)?));
        }
        Ok(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_of_one_kind_are_numbered() {
        let folder = tempfile::tempdir().unwrap();
        let specs = ["memory:?ttl=1s", "memory:", "memory:mine"].map(StoreSpec::url);
        let stores = Store::open_all(specs.into(), folder.path()).unwrap();
        let labels: Vec<_> = stores.iter().map(|store| store.label.as_str()).collect();
        assert_eq!(labels, ["memory", "memory-2", "memory-3"]);
    }
}
