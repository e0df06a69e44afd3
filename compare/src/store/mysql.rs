//! `mysql:` and `mariadb:`: how to connect, and what the server counts.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::backends::mysql::MySqlOptions;
use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};
use parking_lot::Mutex;

use super::pool::{APPLICATION, Pool};
use super::sql::{Rows, SqlConnection};
use crate::error::Error;
use crate::meter::Counter;

/// The server may be busy with many other connections.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How to connect to a server, with the settings of the backend's URL.
#[derive(Clone)]
pub(crate) struct MySqlConfig {
    options: MySqlOptions,
    /// `mysql` or `mariadb`.
    pub(crate) label: &'static str,
}

impl MySqlConfig {
    /// Finds out from the server whether it is MySQL or MariaDB.
    pub(crate) fn detect(options: MySqlOptions) -> Result<Self, Error> {
        let label = "mysql";
        let mut config = Self { options, label };
        let version: Option<String> = config.connect()?.query_first("SELECT VERSION()")?;
        if version.is_some_and(|version| version.contains("MariaDB")) {
            config.label = "mariadb";
        }
        Ok(config)
    }

    pub(crate) fn connect(&self) -> Result<Conn, Error> {
        let options = OptsBuilder::from_opts(self.options.opts())
            .tcp_connect_timeout(Some(CONNECT_TIMEOUT))
            .stmt_cache_size(0);
        Ok(Conn::new(options)?)
    }

    pub(crate) fn pool(&self, size: RangeInclusive<u32>) -> Result<Pool<Conn>, Error> {
        let config = self.clone();
        Pool::open(size, move || config.connect())
    }

    /// Returns the rows of tables in the URL's database, with names that begin with `prefix`.
    pub(crate) fn rows(&self, prefix: &str) -> Result<Rows<Conn>, Error> {
        if self.options.opts().get_db_name().is_none() {
            return Err(Error::invalid(
                "the URL names no database, and the scenario's data needs one; add /NAME",
            ));
        }
        Ok(Rows::new(self.pool(APPLICATION)?, prefix))
    }
}

impl SqlConnection for Conn {
    const BEGIN: &'static str = "START TRANSACTION";
    const TABLE_OPTIONS: &'static str = "ENGINE = InnoDB";

    fn change(&mut self, sql: &str) -> Result<bool, Error> {
        self.query_drop(sql)?;
        Ok(self.affected_rows() > 0)
    }

    fn pair(&mut self, sql: &str) -> Result<(i64, i64), Error> {
        self.query_first(sql)?.ok_or_else(|| {
            Error::failed("the scenario's data is gone; did another program drop its tables?")
        })
    }
}

/// Reads the server's status, on a connection of its own.
pub(crate) struct Stats {
    connection: Mutex<Conn>,
    /// Statements of this counter, which do not count.
    own: AtomicU64,
    /// The statements for these rows do not count.
    state: Arc<Rows<Conn>>,
}

impl Stats {
    /// Counts statements, except those for `state`.
    pub(crate) fn open(config: &MySqlConfig, state: &Arc<Rows<Conn>>) -> Result<Self, Error> {
        Ok(Self {
            connection: Mutex::new(config.connect()?),
            own: AtomicU64::new(0),
            state: Arc::clone(state),
        })
    }

    fn status(&self, name: &str) -> Result<u64, Error> {
        self.own.fetch_add(1, Ordering::Relaxed);
        let sql = format!("SHOW GLOBAL STATUS LIKE '{name}'");
        let row: Option<(String, u64)> = self.connection.lock().query_first(sql)?;
        Ok(row.map_or(0, |(_, value)| value))
    }
}

impl Counter for Stats {
    fn commands(&self) -> Result<u64, Error> {
        let all = self.status("Questions")?;
        let uncounted = self.own.load(Ordering::Relaxed) + self.state.sent();
        Ok(all.saturating_sub(uncounted))
    }

    fn connections(&self) -> Result<u32, Error> {
        let all = self.status("Threads_connected")?;
        Ok(u32::try_from(all).unwrap_or(u32::MAX))
    }
}
