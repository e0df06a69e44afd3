//! Connections to a MySQL or MariaDB server, with the settings of the backend's URL.

use std::time::Duration;

use lockkeeper::mysql::MySqlOptions;
use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder, Pool, PoolConstraints, PoolOpts, PooledConn};

use crate::error::Error;

/// The server may be busy with many other connections.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to connect to a server.
#[derive(Clone)]
pub(crate) struct MySqlConfig {
    options: MySqlOptions,
    label: &'static str,
}

impl MySqlConfig {
    /// Asks the server whether it is MySQL or MariaDB.
    pub(crate) fn detect(options: MySqlOptions) -> Result<Self, Error> {
        let mut config = Self {
            options,
            label: "mysql",
        };
        let version: Option<String> = config.connect()?.query_first("SELECT VERSION()")?;
        if version.is_some_and(|version| version.contains("MariaDB")) {
            config.label = "mariadb";
        }
        Ok(config)
    }

    /// Returns `mysql` or `mariadb`.
    pub(crate) fn label(&self) -> &'static str {
        self.label
    }

    /// Tells whether the settings name a database.
    pub(crate) fn has_database(&self) -> bool {
        self.options.opts().get_db_name().is_some()
    }

    fn opts(&self) -> OptsBuilder {
        OptsBuilder::from_opts(self.options.opts())
            .tcp_connect_timeout(Some(CONNECT_TIMEOUT))
            .stmt_cache_size(0)
    }

    /// Opens a connection.
    pub(crate) fn connect(&self) -> Result<Conn, Error> {
        Ok(Conn::new(self.opts())?)
    }

    /// Opens an application's pool of `min` to `max` connections.
    pub(crate) fn pool(&self, min: usize, max: usize) -> Result<Pool, Error> {
        let constraints = PoolConstraints::new(min, max).unwrap_or_default();
        let options = PoolOpts::new()
            .with_constraints(constraints)
            // Each of the two would cost a round trip whenever a connection is taken.
            .with_reset_connection(false)
            .with_check_health(false);
        Ok(Pool::new(self.opts().pool_opts(options))?)
    }
}

/// Takes a connection from an application's pool; the error is the one that the application gets.
pub(crate) fn from_pool(pool: &Pool, timeout: Duration) -> Result<PooledConn, Error> {
    pool.try_get_conn(timeout).map_err(|error| match error {
        mysql::Error::DriverError(mysql::DriverError::Timeout) => Error::PoolExhausted(format!(
            "none of the pool's connections was free within {timeout:?}"
        )),
        other => other.into(),
    })
}
