//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, Key, KeySpec, LockProvider, OpenContext, Takes};
use lockkeeper_remote::keys::{
    CA_FILE, CONNECT_TIMEOUT, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT, RESTART_GRACE, USER,
};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

use crate::{BACKEND, PostgresOptions, PostgresProvider};

/// Opens `postgres://USER:PASSWORD@HOST:PORT/DATABASE` and the same with `postgresql:`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct PostgresDriver;

impl PostgresDriver {
    /// The database to be in.
    pub const DB: Key<String> = Key::new(
        "db",
        Takes::Text("text"),
        "the user's name",
        "the database to be in, unless the URL names it; each has locks of its own",
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
    pub fn options(context: &OpenContext<'_>) -> Result<PostgresOptions, Error> {
        options(context).map_err(|error| error.with_backend(BACKEND))
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
                Self::SOCKET.spec,
                POOL_SIZE.spec,
                CONNECT_TIMEOUT.spec,
                RESPONSE_TIMEOUT.spec,
                RESTART_GRACE.spec,
                Self::TLS.spec,
                CA_FILE.spec,
            ]
        }
    }

    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = Self::options(context)?;
        let clock = Arc::clone(context.clock());
        let provider = PostgresProvider::with_clock(&options, context.namespace(), clock)?;
        Ok(Arc::new(provider))
    }
}

fn options(context: &OpenContext<'_>) -> Result<PostgresOptions, Error> {
    let url = context.url();
    let invalid = |text: &str| Err(Error::new(ErrorKind::InvalidUrl, text));
    let host = Endpoint::of_url(url, PostgresOptions::DEFAULT_PORT);
    let endpoint = match (host, context.value(&PostgresDriver::SOCKET)?) {
        (Some(_), Some(_)) => {
            return invalid("the URL names a host, and `socket` is given; say one of them");
        }
        (None, None) => {
            return invalid(
                "the URL names no host; write postgres://127.0.0.1:5432/, or postgres:?socket=/run/postgresql/.s.PGSQL.5432",
            );
        }
        (Some(endpoint), None) => endpoint,
        (None, Some(socket)) => Endpoint::Unix(socket.into()),
    };
    let is_tls = context.value(&PostgresDriver::TLS)?.unwrap_or(false);
    let remote = RemoteOptions::new(endpoint).read(context, is_tls, "add tls=on")?;
    let options = PostgresOptions::new(remote);
    let in_path = Some(url.path().trim_start_matches('/')).filter(|db| !db.is_empty());
    let database = given_once(context, &PostgresDriver::DB, in_path)?;
    Ok(match database {
        Some(database) => options.database(database),
        None => options,
    })
}
