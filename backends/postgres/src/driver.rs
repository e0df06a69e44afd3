//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, Key, KeySpec, LockProvider, OpenContext, Takes};
use lockkeeper_register::table::{self, table_of};
use lockkeeper_remote::keys::{
    CA_FILE, CERT_FILE, CONNECT_TIMEOUT, KEY_FILE, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT,
    RESTART_GRACE, SOCKET, TLS, USER,
};
use lockkeeper_sessions::{TlsNames, driver_options};

use crate::options::{BACKEND, PostgresOptions};
use crate::provider::PostgresProvider;
use crate::table::open_table;

/// Opens `postgres://USER:PASSWORD@HOST:PORT/DATABASE` and the same with `postgresql:`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct PostgresDriver;

const TLS_NAMES: TlsNames = TlsNames {
    mode: PostgresDriver::SSLMODE,
    off: "disable",
    on: &["require", "verify-ca", "verify-full"],
    may_be_plain: &["prefer", "allow"],
    ca_file: PostgresDriver::SSLROOTCERT,
};

impl PostgresDriver {
    /// The database of the connections.
    pub const DB: Key<String> = Key::new(
        "db",
        Takes::Text("text"),
        "the user's name",
        "the database to be in, unless the URL names it; each has locks of its own",
    );
    /// The path of the server's Unix socket.
    pub const SOCKET: Key<String> = SOCKET;
    /// Whether connections are encrypted.
    pub const TLS: Key<bool> = TLS;
    /// Whether connections are encrypted, as libpq's URLs say it.
    pub const SSLMODE: Key<String> = Key::new(
        "sslmode",
        Takes::Text("disable, require, verify-ca or verify-full"),
        "none",
        "`tls` as other clients write it; all but `disable` check the server's certificate and name",
    );
    /// A file of certificates to trust, as libpq's URLs say it.
    pub const SSLROOTCERT: Key<String> = Key::new(
        "sslrootcert",
        Takes::Text("a path, or system"),
        "none",
        "`ca_file` as other clients write it",
    );

    /// What keeps the locks: `sessions` or `table`.
    pub const LOCKS: Key<String> = table::LOCKS;
    /// The table, with `locks=table`.
    pub const TABLE: Key<String> = table::TABLE;

    /// Returns the options of a URL and its keys, for a program that uses the same server for more than
    /// locks. Does not connect.
    ///
    /// # Errors
    /// As on opening, for everything that can be checked without the server.
    pub fn options(context: &OpenContext<'_>) -> Result<PostgresOptions, Error> {
        let (remote, database) = driver_options(
            context,
            &Self::DB,
            PostgresOptions::DEFAULT_PORT,
            "postgres://127.0.0.1:5432/, or postgres:?socket=/run/postgresql/.s.PGSQL.5432",
            &TLS_NAMES,
        )
        .map_err(|error| error.with_backend(BACKEND))?;
        let mut options = PostgresOptions::new(remote);
        if let Some(database) = database {
            options = options.database(database);
        }
        let checked = options.check().map(|()| options);
        checked.map_err(|error| error.with_backend(BACKEND))
    }
}

impl Driver for PostgresDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["postgres", "postgresql"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const {
            &[
                USER.spec,
                PASSWORD.spec,
                Self::DB.spec,
                SOCKET.spec,
                POOL_SIZE.spec,
                CONNECT_TIMEOUT.spec,
                RESPONSE_TIMEOUT.spec,
                RESTART_GRACE.spec,
                Self::LOCKS.spec,
                Self::TABLE.spec,
                TLS.spec,
                CA_FILE.spec,
                CERT_FILE.spec,
                KEY_FILE.spec,
                Self::SSLMODE.spec,
                Self::SSLROOTCERT.spec,
            ]
        }
    }

    fn advice(&self, key: &str) -> Option<&'static str> {
        Some(match key {
            "sslcert" => "write `cert_file`",
            "sslkey" => "write `key_file`",
            "channel_binding" => "leave it out: `tls=on` checks the server's certificate",
            "dbname" => "write `db`, or the database in the path of the URL",
            "host" => "write the host in the URL, or the path of a Unix socket as `socket`",
            "application_name" => {
                "leave it out: sessions are named by the process that holds a lock"
            }
            "target_session_attrs" => "leave it out: a replica is always refused",
            _ => return None,
        })
    }

    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn check(&self, context: &OpenContext<'_>) -> Result<(), Error> {
        table_of(context).map_err(|error| error.with_backend(BACKEND))?;
        Self::options(context).map(drop)
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = Self::options(context)?;
        let clock = Arc::clone(context.clock());
        if let Some(table) = table_of(context)? {
            let provider = open_table(&options, &table, context.namespace(), clock)?;
            return Ok(Arc::new(provider));
        }
        let provider = PostgresProvider::with_clock(&options, context.namespace(), clock)?;
        Ok(Arc::new(provider))
    }
}
