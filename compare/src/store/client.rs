//! How the harness itself connects to the store of a URL.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use lockkeeper::local::{MemoryDriver, SqliteDriver};
use lockkeeper::mysql::MySqlDriver;
use lockkeeper::redis::RedisDriver;
use lockkeeper::{Config, Driver, Drivers, LockProvider, OpenContext};

use super::mysql::client::MySqlConfig;
use super::redis::client::RedisConfig;
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
}

impl ClientConfig {
    /// Opens the store of `config`, and finds out what it is and how to connect to it.
    pub(crate) fn find(config: &Config) -> Result<Self, Error> {
        let redis = CapturingDriver::new(RedisDriver, RedisConfig::from_target);
        let mysql = CapturingDriver::new(MySqlDriver, MySqlDriver::options);
        let drivers = Drivers::new()
            .with(MemoryDriver)
            .with(SqliteDriver)
            .with(redis.clone())
            .with(mysql.clone());
        let backend = drivers.open(config)?.backend();
        match (backend, redis.captured(), mysql.captured()) {
            ("memory", ..) => Ok(Self::Memory),
            ("sqlite", ..) => Ok(Self::Sqlite),
            ("redis", Some(config), _) => Ok(Self::Redis(config)),
            ("mysql", _, Some(options)) => Ok(Self::MySql(MySqlConfig::detect(options)?)),
            (other, ..) => Err(Error::invalid(format!(
                "a scenario's data cannot be kept on {other}; use memory:, sqlite:, redis: or \
                 mysql:"
            ))),
        }
    }

    /// Returns the store's short name, for reports.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
            Self::Redis(_) => "redis",
            Self::MySql(config) => config.label(),
        }
    }
}

type Capture<T> = fn(&OpenContext<'_>) -> Result<T, lockkeeper::Error>;

/// Opens stores as `D` does, and captures the settings of the last store that could be opened.
struct CapturingDriver<D, T> {
    driver: D,
    capture: Capture<T>,
    captured: Arc<Mutex<Option<T>>>,
}

impl<D, T: Clone> CapturingDriver<D, T> {
    fn new(driver: D, capture: Capture<T>) -> Self {
        Self {
            driver,
            capture,
            captured: Arc::default(),
        }
    }

    fn captured(&self) -> Option<T> {
        let captured = self.captured.lock().unwrap_or_else(PoisonError::into_inner);
        captured.clone()
    }
}

impl<D: Clone, T> Clone for CapturingDriver<D, T> {
    fn clone(&self) -> Self {
        Self {
            driver: self.driver.clone(),
            capture: self.capture,
            captured: Arc::clone(&self.captured),
        }
    }
}

impl<D: fmt::Debug, T> fmt::Debug for CapturingDriver<D, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CapturingDriver")
            .field(&self.driver)
            .finish()
    }
}

impl<D: Driver, T: Send + 'static> Driver for CapturingDriver<D, T> {
    fn schemes(&self) -> &'static [&'static str] {
        self.driver.schemes()
    }

    fn keys(&self) -> &'static [lockkeeper::KeySpec] {
        self.driver.keys()
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, lockkeeper::Error> {
        // The driver comes first, since it says what is wrong with the settings.
        let provider = self.driver.open(target)?;
        let settings = (self.capture)(target)?;
        *self.captured.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
        Ok(provider)
    }
}
