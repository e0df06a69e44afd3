//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, LockProvider, OpenContext};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

use crate::{BACKEND, MySqlOptions, MySqlProvider};

/// Opens `mysql://USER:PASSWORD@HOST:PORT/DATABASE` and the same with `mariadb:`.
///
/// It takes the keys of every [remote store](lockkeeper_remote#options) (`ca_file` with `tls=on` only;
/// default: the authorities that browsers trust, which are always trusted), and:
///
/// | key | value | default |
/// |---|---|---|
/// | `db` | the database to be in, if the URL does not give it; locks know no databases | none |
/// | `socket` | a Unix socket's path, for a URL without host: `mysql:?socket=/run/mysqld/mysqld.sock` | none |
/// | `tls` | `on` or `off` | `off` |
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

    fn keys(&self) -> &'static [&'static str] {
        &[
            "user",
            "password",
            "db",
            "socket",
            "pool_size",
            "connect_timeout",
            "response_timeout",
            "tls",
            "ca_file",
        ]
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
