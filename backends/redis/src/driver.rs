//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, Key, KeySpec, LockProvider, OpenContext, Takes};
use lockkeeper_remote::keys::{
    CA_FILE, CONNECT_TIMEOUT, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT, RESTART_GRACE, USER,
};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

use crate::{BACKEND, RedisOptions, RedisProvider};

/// Opens `redis://HOST:PORT/DB`, `rediss://…` (with TLS) and `unix:/PATH`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisDriver;

impl RedisDriver {
    /// The database's number, which the server counts in signed numbers of 32 bits.
    pub const DB: Key<u32> = Key::new(
        "db",
        Takes::Number(0, i32::MAX as u32),
        "0",
        "the database's number, unless the URL names it",
    );
    /// The number of replicas that must acknowledge a grant and each renewal.
    pub const REPLICAS: Key<u32> = Key::new(
        "replicas",
        Takes::Number(0, 1_000),
        "0",
        "how many replicas must acknowledge a grant and each renewal",
    );
}

impl Driver for RedisDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["redis", "rediss", "unix"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const {
            &[
                USER.spec,
                PASSWORD.spec,
                Self::DB.spec,
                POOL_SIZE.spec,
                CONNECT_TIMEOUT.spec,
                RESPONSE_TIMEOUT.spec,
                RESTART_GRACE.spec,
                CA_FILE.spec,
                Self::REPLICAS.spec,
            ]
        }
    }

    fn epochs_follow_clock(&self) -> bool {
        true
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
    let path = url.path();
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
        in_path = Some(path.trim_start_matches('/')).filter(|db| !db.is_empty());
        endpoint
    };
    let is_tls = url.scheme() == "rediss";
    let remote = RemoteOptions::new(endpoint);
    let remote = remote.read(context, is_tls, "write rediss:// instead")?;
    let mut options = RedisOptions::new(remote);
    if let Some(database) = given_once(context, &RedisDriver::DB, in_path)? {
        options = options.database(database);
    }
    if let Some(replicas) = context.value(&RedisDriver::REPLICAS)? {
        options = options.replicas(replicas);
    }
    Ok(options)
}
