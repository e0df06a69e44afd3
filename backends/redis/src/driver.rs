//! From a URL and its keys to a provider.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, LockProvider, OpenContext};

use crate::options::{DATABASES, POOL_SIZES, REPLICAS};
use crate::{BACKEND, RedisOptions, RedisProvider};

/// Opens `redis://HOST:PORT/DB`, `rediss://…` (with TLS) and `unix:/PATH`.
///
/// | key | value | default |
/// |---|---|---|
/// | `user`, `password` | to log in with, where the URL does not say it | none |
/// | `db` | the database's number, where the URL does not say it | `0` |
/// | `pool_size` | the most connections, from 1 to 1000 | `10` |
/// | `connect_timeout` | duration from 1 ms to a day; the longest that opening a connection may take | `2s` |
/// | `response_timeout` | duration from 1 ms to a day; the longest to wait for one answer | `1s` |
/// | `ca_file` | `rediss:` only: a PEM file of certificates to trust | the system's |
/// | `replicas` | how many replicas must acknowledge a grant and each renewal, from 0 to 1000 | `0` |
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisDriver;

impl Driver for RedisDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["redis", "rediss", "unix"]
    }

    fn keys(&self) -> &'static [&'static str] {
        &[
            "user",
            "password",
            "db",
            "pool_size",
            "connect_timeout",
            "response_timeout",
            "ca_file",
            "replicas",
        ]
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = options(target).map_err(|error| error.with_backend(BACKEND))?;
        let clock = Arc::clone(target.clock());
        let provider = RedisProvider::with_clock(&options, target.namespace(), clock)?;
        Ok(Arc::new(provider))
    }
}

fn options(target: &OpenContext<'_>) -> Result<RedisOptions, Error> {
    let url = target.url();
    let invalid = |text: &str| Err(Error::new(ErrorKind::InvalidUrl, text));
    let path = url.path()?;
    let ca_file = target.get("ca_file").map(PathBuf::from);
    let mut in_path = None;
    let mut options = if url.scheme() == "unix" {
        if url.host().is_some() || path.is_empty() {
            return invalid("`unix:` takes a socket's path; write unix:/run/redis/redis.sock");
        }
        RedisOptions::unix(path)
    } else {
        let Some(host) = url.host() else {
            return invalid("the URL names no host; write redis://127.0.0.1:6379/0");
        };
        // An IPv6 address is in brackets there.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = url.port().unwrap_or(RedisOptions::DEFAULT_PORT);
        in_path = Some(path.trim_start_matches('/').to_owned()).filter(|db| !db.is_empty());
        RedisOptions::tcp(host, port)
    };
    if url.scheme() == "rediss" {
        options = options.tls(ca_file);
    } else if ca_file.is_some() {
        return Err(Error::new(
            ErrorKind::InvalidValue,
            "`ca_file` is for TLS; write rediss:// instead, or leave it out",
        ));
    }
    if let Some(database) = once("db", in_path, target.get("db"))? {
        let Ok(database) = database.parse() else {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                format!(
                    "the database (`db`, or the URL's path) is {}, and not {database:?}",
                    a_number(&DATABASES)
                ),
            ));
        };
        options = options.database(database);
    }
    if let Some(user) = once("user", url.username()?, target.get("user"))? {
        options = options.user(user);
    }
    if let Some(password) = once("password", url.password()?, target.get("password"))? {
        options = options.password(password);
    }
    if let Some(size) = target.parse("pool_size", &a_number(&POOL_SIZES))? {
        options = options.pool_size(size);
    }
    if let Some(limit) = target.duration("connect_timeout")? {
        options = options.connect_timeout(limit);
    }
    if let Some(limit) = target.duration("response_timeout")? {
        options = options.response_timeout(limit);
    }
    if let Some(replicas) = target.parse("replicas", &a_number(&REPLICAS))? {
        options = options.replicas(replicas);
    }
    Ok(options)
}

fn a_number(range: &RangeInclusive<u32>) -> String {
    format!("a number from {} to {}", range.start(), range.end())
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
