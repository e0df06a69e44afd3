//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, KeySpec, LockProvider, OpenContext};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

use crate::options::{DATABASES, REPLICAS};
use crate::{BACKEND, RedisOptions, RedisProvider};

/// Opens `redis://HOST:PORT/DB`, `rediss://…` (with TLS) and `unix:/PATH`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisDriver;

impl Driver for RedisDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["redis", "rediss", "unix"]
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
                    "a number",
                    "0",
                    "the database's number, unless the URL names it",
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
                    "ca_file",
                    "a path",
                    "the system's certificates",
                    "`rediss:` only: a PEM file of certificates to trust",
                ),
                KeySpec::new(
                    "replicas",
                    "a number from 0 to 1000",
                    "0",
                    "how many replicas must acknowledge a grant and each renewal",
                ),
            ]
        }
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = options(context).map_err(|error| error.with_backend(BACKEND))?;
        let clock = Arc::clone(context.clock());
        let provider = RedisProvider::with_clock(&options, context.namespace(), clock)?;
        Ok(Arc::new(provider))
    }
}

fn options(context: &OpenContext<'_>) -> Result<RedisOptions, Error> {
    let url = context.url();
    let invalid = |text: &str| Err(Error::new(ErrorKind::InvalidUrl, text));
    let path = url.path()?;
    let mut in_path = None;
    let endpoint = if url.scheme() == "unix" {
        if url.host().is_some() || path.is_empty() {
            return invalid("`unix:` takes a socket's path; write unix:/run/redis/redis.sock");
        }
        Endpoint::Unix(path.into())
    } else {
        let Some(endpoint) = Endpoint::of_url(url, RedisOptions::DEFAULT_PORT) else {
            return invalid("the URL names no host; write redis://127.0.0.1:6379/0");
        };
        in_path = Some(path.trim_start_matches('/').to_owned()).filter(|db| !db.is_empty());
        endpoint
    };
    let is_tls = url.scheme() == "rediss";
    let remote = RemoteOptions::new(endpoint);
    let remote = remote.read(context, is_tls, "write rediss:// instead")?;
    let mut options = RedisOptions::new(remote);
    if let Some(database) = given_once(context, "db", in_path)? {
        let Ok(database) = database.parse() else {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                format!(
                    "the database (`db`, or the URL's path) is a number from {} to {}, and not {database:?}",
                    DATABASES.start(),
                    DATABASES.end()
                ),
            ));
        };
        options = options.database(database);
    }
    if let Some(replicas) = context.number("replicas", REPLICAS)? {
        options = options.replicas(replicas);
    }
    Ok(options)
}
