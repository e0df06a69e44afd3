#![doc = include_str!("../README.md")]

use std::sync::LazyLock;

pub use lockkeeper_core::*;

/// The embedded stores as types, for programs that build their keeper without a URL.
pub use lockkeeper_local as local;

/// The MySQL and MariaDB backend as types, for programs that build their keeper without a URL.
#[cfg(feature = "mysql")]
pub use lockkeeper_mysql as mysql;

/// The Redis backend as types, for programs that build their keeper without a URL.
#[cfg(feature = "redis")]
pub use lockkeeper_redis as redis;

/// The drivers that were compiled in. Add one of your own with [`Drivers::with`].
pub fn drivers() -> Drivers {
    let drivers = Drivers::new().with(lockkeeper_local::MemoryDriver);
    #[cfg(feature = "sqlite")]
    let drivers = drivers.with(lockkeeper_local::SqliteDriver);
    #[cfg(not(feature = "sqlite"))]
    let drivers = drivers.without("sqlite", "sqlite");
    #[cfg(feature = "redis")]
    let drivers = drivers.with(lockkeeper_redis::RedisDriver);
    #[cfg(not(feature = "redis"))]
    let drivers = ["redis", "rediss", "unix"]
        .into_iter()
        .fold(drivers, |drivers, scheme| drivers.without(scheme, "redis"));
    #[cfg(feature = "mysql")]
    let drivers = drivers.with(lockkeeper_mysql::MySqlDriver);
    #[cfg(not(feature = "mysql"))]
    let drivers = ["mysql", "mariadb"]
        .into_iter()
        .fold(drivers, |drivers, scheme| drivers.without(scheme, "mysql"));
    drivers
}

static DRIVERS: LazyLock<Drivers> = LazyLock::new(drivers);

/// Opens the store of a URL, such as `sqlite:/var/lib/shop/locks.db?ttl=30s&wait=5s`. [`Config`]
/// lists the keys.
///
/// # Errors
/// What is wrong with the URL or one of its keys, each with a kind of its own, before any store is
/// talked to; or why the store could not be opened.
pub fn open(url: &str) -> Result<LockKeeper, Error> {
    open_config(&Config::from_url(url)?)
}

/// Opens the store of a [`Config`], which can come from a URL, from the environment or from a
/// file.
///
/// # Errors
/// As [`open`].
pub fn open_config(config: &Config) -> Result<LockKeeper, Error> {
    DRIVERS.open(config)
}
