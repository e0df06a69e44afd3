//! From a URL and its keys to a provider.

use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, LockProvider, OpenContext};

use crate::options::TAKES_POOL_SIZE;
use crate::{BACKEND, MySqlOptions, MySqlProvider};

/// Opens `mysql://USER:PASSWORD@HOST:PORT/DATABASE` and the same with `mariadb:`.
///
/// | key | value | default |
/// |---|---|---|
/// | `user`, `password` | to log in with, where the URL does not say it | none |
/// | `db` | the database to be in, where the URL does not say it; locks know no databases | none |
/// | `socket` | a Unix socket's path, for a URL without host: `mysql:?socket=/run/mysqld/mysqld.sock` | none |
/// | `pool_size` | the most connections, from 1 to 1000 | `10` |
/// | `connect_timeout` | duration from 1ms to 1day; the longest that opening a connection may take | `2s` |
/// | `response_timeout` | duration from 1ms to 1day; the longest to wait for one answer | `1s` |
/// | `tls` | `on` or `off` | `off` |
/// | `ca_file` | with `tls=on`: a PEM file of certificates to trust, too | none |
#[derive(Clone, Copy, Debug, Default)]
pub struct MySqlDriver;

impl MySqlDriver {
    /// What the URL and its keys say: for a program that goes to the same server for something else
    /// than locks. Talks to no server.
    ///
    /// # Errors
    /// As on opening, for what can be told without the server.
    pub fn options(target: &OpenContext<'_>) -> Result<MySqlOptions, Error> {
        options(target).map_err(|error| error.with_backend(BACKEND))
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

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = Self::options(target)?;
        let clock = Arc::clone(target.clock());
        let provider = MySqlProvider::with_clock(&options, target.namespace(), clock)?;
        for warning in provider.warnings() {
            target.warn(warning);
        }
        Ok(Arc::new(provider))
    }
}

fn options(target: &OpenContext<'_>) -> Result<MySqlOptions, Error> {
    let url = target.url();
    let invalid = |text: &str| Err(Error::new(ErrorKind::InvalidUrl, text));
    let mut options = match (url.host(), target.get("socket")) {
        (Some(_), Some(_)) => {
            return invalid("the URL names a host, and `socket` is given; say one of them");
        }
        (None, None) => {
            return invalid(
                "the URL names no host; write mysql://127.0.0.1:3306/, or mysql:?socket=/run/mysqld/mysqld.sock",
            );
        }
        (Some(host), None) => {
            // An IPv6 address is in brackets there.
            let host = host.trim_start_matches('[').trim_end_matches(']');
            MySqlOptions::tcp(host, url.port().unwrap_or(MySqlOptions::DEFAULT_PORT))
        }
        (None, Some(socket)) => MySqlOptions::unix(socket),
    };
    let ca_file = target.get("ca_file").map(PathBuf::from);
    match target.get("tls") {
        Some("on") => options = options.tls(ca_file),
        None | Some("off") if ca_file.is_some() => {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                "`ca_file` is for TLS; add tls=on, or leave it out",
            ));
        }
        None | Some("off") => {}
        Some(other) => {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                format!("`tls` takes on or off, and not {other:?}"),
            ));
        }
    }
    let path = url.path()?;
    let in_path = Some(path.trim_start_matches('/').to_owned()).filter(|db| !db.is_empty());
    if let Some(database) = once("db", in_path, target.get("db"))? {
        options = options.database(database);
    }
    if let Some(user) = once("user", url.username()?, target.get("user"))? {
        options = options.user(user);
    }
    if let Some(password) = once("password", url.password()?, target.get("password"))? {
        options = options.password(password);
    }
    if let Some(size) = target.parse("pool_size", TAKES_POOL_SIZE)? {
        options = options.pool_size(size);
    }
    if let Some(limit) = target.duration("connect_timeout")? {
        options = options.connect_timeout(limit);
    }
    if let Some(limit) = target.duration("response_timeout")? {
        options = options.response_timeout(limit);
    }
    Ok(options)
}

/// What the URL says in its own way, or a key.
fn once(key: &str, in_url: Option<String>, given: Option<&str>) -> Result<Option<String>, Error> {
    match (in_url, given) {
        (Some(_), Some(_)) => Err(Error::new(
            ErrorKind::InvalidValue,
            format!("`{key}` is given twice, in the URL and as a key; say it once"),
        )),
        (in_url, given) => Ok(in_url.or_else(|| given.map(str::to_owned))),
    }
}
