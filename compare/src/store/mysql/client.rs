//! How to get to a MySQL or MariaDB server, as the backend does.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::mysql::{MySqlDriver, MySqlOptions};
use lockkeeper::{Driver, Error, LockProvider, Target};
use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder, Pool, PoolConstraints, PoolOpts};

use crate::error::Failure;

/// To connect: the server may be busy with many others.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens locks as [`MySqlDriver`] does, and remembers where: the state is to be beside them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noting {
    noted: Arc<Mutex<Option<MySqlOptions>>>,
}

impl Noting {
    /// Where the last store was that could be opened.
    pub(crate) fn door(&self) -> Result<Option<Door>, Failure> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.as_ref().map(Door::find).transpose()
    }
}

impl Driver for Noting {
    fn schemes(&self) -> &'static [&'static str] {
        MySqlDriver.schemes()
    }

    fn keys(&self) -> &'static [&'static str] {
        MySqlDriver.keys()
    }

    fn open(&self, target: &Target<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        // First, since it says what is wrong with the settings.
        let provider = MySqlDriver.open(target)?;
        let options = MySqlDriver::options(target)?;
        *self.noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(options);
        Ok(provider)
    }
}

/// How to reach a server.
#[derive(Clone)]
pub(crate) struct Door {
    options: MySqlOptions,
    label: &'static str,
}

impl Door {
    fn find(options: &MySqlOptions) -> Result<Self, Failure> {
        let mut door = Self {
            options: options.clone(),
            label: "mysql",
        };
        let version: Option<String> = door.connect()?.query_first("SELECT VERSION()")?;
        if version.is_some_and(|version| version.contains("MariaDB")) {
            door.label = "mariadb";
        }
        Ok(door)
    }

    /// `mysql` or `mariadb`, as the server says.
    pub(crate) fn label(&self) -> &'static str {
        self.label
    }

    /// Whether it leads into a database.
    pub(crate) fn has_database(&self) -> bool {
        self.options.opts().get_db_name().is_some()
    }

    fn opts(&self) -> OptsBuilder {
        OptsBuilder::from_opts(self.options.opts().clone())
            .tcp_connect_timeout(Some(PATIENCE))
            .stmt_cache_size(0)
    }

    /// A connection of its own.
    pub(crate) fn connect(&self) -> Result<Conn, Failure> {
        Ok(Conn::new(self.opts())?)
    }

    /// An application's pool, with so many connections at first and at most.
    pub(crate) fn pool(&self, first: usize, most: usize) -> Result<Pool, Failure> {
        let constraints = PoolConstraints::new(first, most).unwrap_or_default();
        let options = PoolOpts::new()
            .with_constraints(constraints)
            // Both are a round trip more each time.
            .with_reset_connection(false)
            .with_check_health(false);
        Ok(Pool::new(self.opts().pool_opts(options))?)
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Door").field(&self.options).finish()
    }
}
