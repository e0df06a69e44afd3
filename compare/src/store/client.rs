//! How the harness itself connects to the store of a URL.

use std::fmt;
use std::sync::Arc;

use lockkeeper::Config;
use lockkeeper::backend::{Capabilities, Driver, Drivers, LockProvider, OpenContext};
use lockkeeper::backends::consul::{ConsulDriver, ConsulOptions};
use lockkeeper::backends::etcd::{EtcdDriver, EtcdOptions};
use lockkeeper::backends::local::{MemoryDriver, SqliteDriver};
use lockkeeper::backends::mysql::MySqlDriver;
use lockkeeper::backends::postgres::PostgresDriver;
use lockkeeper::backends::quorum::QuorumDriver;
use lockkeeper::backends::redis::RedisDriver;
use lockkeeper::backends::zookeeper::ZooKeeperDriver;
use parking_lot::Mutex;

use super::mysql::MySqlConfig;
use super::postgres::PostgresConfig;
use super::redis::client::RedisConfig;
use super::zookeeper::ZooKeeperConfig;
use crate::error::Error;

/// How clients other than this library connect to a store.
#[derive(Clone)]
pub(crate) enum ClientConfig {
    Memory,
    Sqlite,
    /// A Redis or Valkey server.
    Redis(RedisConfig),
    /// A MySQL or MariaDB server.
    MySql(MySqlConfig),
    /// A PostgreSQL server.
    Postgres(PostgresConfig),
    /// An etcd cluster.
    Etcd(EtcdOptions),
    /// A Consul cluster.
    Consul(ConsulOptions),
    /// A ZooKeeper ensemble.
    ZooKeeper(ZooKeeperConfig),
    /// A majority of other stores.
    Quorum,
}

impl ClientConfig {
    /// Opens the store of `config`, and finds out what it is, how to connect to it, and what it is able to do.
    pub(crate) fn find(config: &Config) -> Result<(Self, Capabilities), Error> {
        let captured = Captured::default();
        let drivers = Drivers::new()
            .with(captured.by(MemoryDriver, |_| Ok(Self::Memory)))
            .with(captured.by(SqliteDriver, |_| Ok(Self::Sqlite)))
            .with(captured.by(RedisDriver, |context| {
                RedisConfig::from_context(context).map(Self::Redis)
            }))
            .with(captured.by(MySqlDriver, |context| {
                MySqlConfig::detect(MySqlDriver::options(context)?).map(Self::MySql)
            }))
            .with(captured.by(PostgresDriver, |context| {
                let options = PostgresDriver::options(context)?;
                Ok(Self::Postgres(PostgresConfig { options }))
            }))
            .with(captured.by(EtcdDriver, |context| {
                Ok(Self::Etcd(EtcdDriver::options(context)?))
            }))
            .with(captured.by(ConsulDriver, |context| {
                Ok(Self::Consul(ConsulDriver::options(context)?))
            }))
            .with(captured.by(ZooKeeperDriver, |context| {
                let options = ZooKeeperDriver::options(context)?;
                Ok(Self::ZooKeeper(ZooKeeperConfig { options }))
            }))
            .with(captured.by(QuorumDriver, |_| Ok(Self::Quorum)));
        let capabilities = drivers.open(config)?.capabilities();
        let captured = captured.0.lock().take();
        let client =
            captured.unwrap_or_else(|| Err(Error::failed("no driver opened the store")))?;
        Ok((client, capabilities))
    }

    /// Returns the store's short name, for reports.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis(_) => "redis",
            Self::MySql(config) => config.label,
            Self::Postgres(_) => "postgres",
            Self::Etcd(_) => "etcd",
            Self::Consul(_) => "consul",
            Self::ZooKeeper(_) => "zookeeper",
            Self::Quorum => "quorum",
        }
    }
}

/// The settings of the store that was opened last: of several, with a fallback, only the last one
/// could be opened.
#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Option<Result<ClientConfig, Error>>>>);

type Capture = fn(&OpenContext<'_>) -> Result<ClientConfig, Error>;

impl Captured {
    /// Returns a driver that opens stores as `driver` does, and captures their settings.
    fn by<D: Driver>(&self, driver: D, capture: Capture) -> CapturingDriver<D> {
        CapturingDriver {
            driver,
            capture,
            captured: self.clone(),
        }
    }
}

struct CapturingDriver<D> {
    driver: D,
    capture: Capture,
    captured: Captured,
}

impl<D: Driver> Driver for CapturingDriver<D> {
    fn schemes(&self) -> &'static [&'static str] {
        self.driver.schemes()
    }

    fn keys(&self) -> &'static [lockkeeper::backend::KeySpec] {
        self.driver.keys()
    }

    fn advice(&self, key: &str) -> Option<&'static str> {
        self.driver.advice(key)
    }

    fn takes_several_hosts(&self, scheme: &str) -> bool {
        self.driver.takes_several_hosts(scheme)
    }

    fn check(&self, context: &OpenContext<'_>) -> Result<(), lockkeeper::Error> {
        self.driver.check(context)
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, lockkeeper::Error> {
        // The driver comes first, since it says what is wrong with the settings.
        let provider = self.driver.open(context)?;
        *self.captured.0.lock() = Some((self.capture)(context));
        Ok(provider)
    }
}

impl<D: fmt::Debug> fmt::Debug for CapturingDriver<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CapturingDriver")
            .field(&self.driver)
            .finish()
    }
}
