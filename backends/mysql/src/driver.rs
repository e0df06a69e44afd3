//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, KeySpec, LockProvider, OpenContext};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

use crate::{BACKEND, MySqlOptions, MySqlProvider};

/// Opens `mysql://USER:PASSWORD@HOST:PORT/DATABASE` and the same with `mariadb:`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct MySqlDriver;

impl MySqlDriver {
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
                KeySpec::new(
                    "user",
                    "text",
                    "none",
                    "the user to log in with, unless the URL names one",
                ),
                KeySpec::new(
                    "password",
                    "text",
                    "none",
                    "the password to log in with, unless the URL has one",
                ),
                KeySpec::new(
                    "db",
                    "text",
                    "none",
                    "the database to be in, unless the URL names it; locks know no databases",
                ),
                KeySpec::new(
                    "socket",
                    "a path",
                    "none",
                    "the server's Unix socket, for a URL without host",
                ),
                KeySpec::new(
                    "pool_size",
                    "a number from 1 to 1000",
                    "10",
                    "the most connections",
                ),
                KeySpec::new(
                    "connect_timeout",
                    "a duration from 1ms to a day",
                    "2s",
                    "the longest that opening a connection may take",
                ),
                KeySpec::new(
                    "response_timeout",
                    "a duration from 1ms to a day",
                    "1s",
                    "the longest wait for one reply",
                ),
                KeySpec::new(
                    "tls",
                    "on or off",
                    "off",
                    "whether the connection is encrypted",
                ),
                KeySpec::new(
                    "ca_file",
                    "a path",
                    "none",
                    "with `tls=on`: a PEM file of certificates to trust, too",
                ),
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
    let endpoint = match (host, context.get("socket")) {
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
    let is_tls = match context.get("tls") {
        Some("on") => true,
        None | Some("off") => false,
        Some(other) => {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                format!("`tls` takes on or off, and not {other:?}"),
            ));
        }
    };
    let remote = RemoteOptions::new(endpoint).read(context, is_tls, "add tls=on")?;
    let options = MySqlOptions::new(remote);
    let path = url.path()?;
    let in_path = Some(path.trim_start_matches('/').to_owned()).filter(|db| !db.is_empty());
    let database = given_once(context, "db", in_path)?;
    Ok(match database {
        Some(database) => options.database(database),
        None => options,
    })
}
