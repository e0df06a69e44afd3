//! How this comparison itself reaches a store.

use lockkeeper::{Config, Drivers};

use super::{mysql, redis};
use crate::error::Failure;

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
