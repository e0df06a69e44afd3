//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, Key, KeySpec, LockProvider, OpenContext, Takes};
use lockkeeper_register::table::{self, table_of};
use lockkeeper_remote::keys::{
    CA_FILE, CERT_FILE, CONNECT_TIMEOUT, KEY_FILE, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT,
    RESTART_GRACE, SOCKET, TLS, USER,
};
use lockkeeper_sessions::{TlsNames, driver_options};

use crate::options::{BACKEND, MySqlOptions};
use crate::provider::MySqlProvider;
use crate::table::open_table;

/// Opens `mysql://USER:PASSWORD@HOST:PORT/DATABASE` and the same with `mariadb:`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct MySqlDriver;

const TLS_NAMES: TlsNames = TlsNames {
    mode: MySqlDriver::SSL_MODE,
    off: "DISABLED",
    on: &["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"],
    may_be_plain: &["PREFERRED"],
    ca_file: MySqlDriver::SSL_CA,
};

impl MySqlDriver {
    /// The database of the connections.
    pub const DB: Key<String> = Key::new(
        "db",
        Takes::Text("text"),
        "none",
        "the database to be in, unless the URL names it; all share the same locks",
    );
    /// The path of the server's Unix socket.
    pub const SOCKET: Key<String> = SOCKET;
    /// Whether connections are encrypted.
    pub const TLS: Key<bool> = TLS;
    /// Whether connections are encrypted, as MySQL's own clients say it.
    pub const SSL_MODE: Key<String> = Key::new(
        "ssl-mode",
        Takes::Text("DISABLED, REQUIRED, VERIFY_CA or VERIFY_IDENTITY"),
        "none",
        "`tls` as other clients write it; all but `DISABLED` check the server's certificate and name",
    );
    /// A file of certificates to trust, as MySQL's own clients say it.
    pub const SSL_CA: Key<String> = Key::new(
        "ssl-ca",
        Takes::Text("a path"),
        "none",
        "`ca_file` as other clients write it",
    );
    /// A file with the server's public key.
    pub const SERVER_KEY_FILE: Key<String> = Key::new(
        "server_key_file",
        Takes::Text("a path"),
        "none",
        "without TLS: a PEM file of the server's public key, by which it gets the password",
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
    pub fn options(context: &OpenContext<'_>) -> Result<MySqlOptions, Error> {
        let (remote, database) = driver_options(
            context,
            &Self::DB,
            MySqlOptions::DEFAULT_PORT,
            "mysql://127.0.0.1:3306/, or mysql:?socket=/run/mysqld/mysqld.sock",
            &TLS_NAMES,
        )
        .map_err(|error| error.with_backend(BACKEND))?;
        let mut options = MySqlOptions::new(remote);
        if let Some(database) = database {
            options = options.database(database);
        }
        if let Some(file) = context.value(&Self::SERVER_KEY_FILE)? {
            options = options.server_key(file);
        }
        let checked = options.check().map(|()| options);
        checked.map_err(|error| error.with_backend(BACKEND))
    }
}

impl Driver for MySqlDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["mysql", "mariadb"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const {
            let ca_file = KeySpec {
                default: "the authorities that browsers trust",
                meaning: "with `tls=on`: a PEM file of certificates to trust as well",
                ..CA_FILE.spec
            };
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
                ca_file,
                CERT_FILE.spec,
                KEY_FILE.spec,
                Self::SERVER_KEY_FILE.spec,
                Self::SSL_MODE.spec,
                Self::SSL_CA.spec,
            ]
        }
    }

    fn advice(&self, key: &str) -> Option<&'static str> {
        Some(match key {
            "ssl" | "ssl_mode" | "sslMode" | "sslmode" | "useSSL" | "require_ssl" => {
                "write `tls=on`, which also checks the server's certificate, or `tls=off`"
            }
            "ssl_ca" => "write `ca_file`",
            "ssl-cert" | "ssl_cert" => "write `cert_file`",
            "ssl-key" | "ssl_key" => "write `key_file`",
            _ => return None,
        })
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
        let provider = MySqlProvider::with_clock(&options, context.namespace(), clock)?;
        for warning in provider.warnings() {
            context.warn(warning);
        }
        Ok(Arc::new(provider))
    }
}
