//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, Key, KeySpec, LockProvider, OpenContext, Takes};
use lockkeeper_remote::keys::{
    CA_FILE, CONNECT_TIMEOUT, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT, RESTART_GRACE, USER,
};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

use crate::{BACKEND, MySqlOptions, MySqlProvider};

/// Opens `mysql://USER:PASSWORD@HOST:PORT/DATABASE` and the same with `mariadb:`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct MySqlDriver;

impl MySqlDriver {
    /// The database to be in.
    pub const DB: Key<String> = Key::new(
        "db",
        Takes::Text("text"),
        "none",
        "the database to be in, unless the URL names it; all share the same locks",
    );
    /// The path of the server's Unix socket.
    pub const SOCKET: Key<String> = Key::new(
        "socket",
        Takes::Text("a path"),
        "none",
        "the server's Unix socket, for a URL without host",
    );
    /// Whether connections are encrypted.
    pub const TLS: Key<bool> = Key::new(
        "tls",
        Takes::FLAG,
        "off",
        "whether connections are encrypted",
    );

    /// Returns the options of a URL and its keys, for a program that uses the same server for more than
    /// locks. Talks to no server.
    ///
    /// # Errors
    /// As on opening, for everything that can be checked without the server.
    pub fn options(context: &OpenContext<'_>) -> Result<MySqlOptions, Error> {
        options(context).map_err(|error| error.with_backend(BACKEND))
    }
}

impl Driver for MySqlDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["mysql", "mariadb"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const {
            &[
                USER.spec,
                PASSWORD.spec,
                Self::DB.spec,
                Self::SOCKET.spec,
                POOL_SIZE.spec,
                CONNECT_TIMEOUT.spec,
                RESPONSE_TIMEOUT.spec,
                RESTART_GRACE.spec,
                Self::TLS.spec,
                KeySpec {
                    default: "the authorities that browsers trust",
                    meaning: "with `tls=on`: a PEM file of certificates to trust as well",
                    ..CA_FILE.spec
                },
            ]
        }
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = Self::options(context)?;
        let clock = Arc::clone(context.clock());
        let provider = MySqlProvider::with_clock(&options, context.namespace(), clock)?;
        for warning in provider.warnings() {
            context.warn(warning);
        }
        Ok(Arc::new(provider))
    }
}

fn options(context: &OpenContext<'_>) -> Result<MySqlOptions, Error> {
    let url = context.url();
    let invalid = |text: &str| Err(Error::new(ErrorKind::InvalidUrl, text));
    let host = Endpoint::of_url(url, MySqlOptions::DEFAULT_PORT);
    let endpoint = match (host, context.value(&MySqlDriver::SOCKET)?) {
        (Some(_), Some(_)) => {
            return invalid("the URL names a host, and `socket` is given; say one of them");
        }
        (None, None) => {
            return invalid(
                "the URL names no host; write mysql://127.0.0.1:3306/, or mysql:?socket=/run/mysqld/mysqld.sock",
            );
        }
        (Some(endpoint), None) => endpoint,
        (None, Some(socket)) => Endpoint::Unix(socket.into()),
    };
    let is_tls = context.value(&MySqlDriver::TLS)?.unwrap_or(false);
    let remote = RemoteOptions::new(endpoint).read(context, is_tls, "add tls=on")?;
    let options = MySqlOptions::new(remote);
    let in_path = Some(url.path().trim_start_matches('/')).filter(|db| !db.is_empty());
    let database = given_once(context, &MySqlDriver::DB, in_path)?;
    Ok(match database {
        Some(database) => options.database(database),
        None => options,
    })
}
