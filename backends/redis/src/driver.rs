//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{
    Driver, Error, ErrorKind, Key, KeySpec, LockProvider, OpenContext, StoreUrl, Takes,
};
use lockkeeper_remote::keys::{
    CA_FILE, CERT_FILE, CONNECT_TIMEOUT, KEY_FILE, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT,
    RESTART_GRACE, USER,
};
use lockkeeper_remote::{Endpoint, RemoteOptions, given_once};

use crate::options::{self, BACKEND, RedisOptions};
use crate::provider::RedisProvider;

/// Opens `redis://HOST:PORT/DB`, `rediss://…` (with TLS) and `unix:/PATH`; and `redis+sentinel://HOST,HOST/PRIMARY`
/// and `rediss+sentinel://…`, where the hosts are sentinels; and `redis+cluster://HOST,HOST` and `rediss+cluster://…`.
/// `valkey://…` and `valkeys://…` mean the same as `redis://…` and `rediss://…`.
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct RedisDriver;

impl RedisDriver {
    /// The database's number, which the server counts in signed numbers of 32 bits.
    pub const DB: Key<u32> = options::DB;
    /// The number of replicas that must acknowledge a grant and each renewal.
    pub const REPLICAS: Key<u32> = options::REPLICAS;
    /// The user to log in as at the sentinels.
    pub const SENTINEL_USER: Key<String> = Key::new(
        "sentinel_user",
        Takes::Text("text"),
        "none",
        "with sentinels: the user to log in with there",
    );
    /// The password to log in with at the sentinels.
    pub const SENTINEL_PASSWORD: Key<String> = Key::new(
        "sentinel_password",
        Takes::Text("text"),
        "none",
        "with sentinels: the password to log in with there",
    );
}

/// The schemes whose hosts are sentinels.
const SENTINEL: &str = "redis+sentinel";
const SENTINEL_TLS: &str = "rediss+sentinel";
/// The schemes whose hosts are nodes of a cluster.
const CLUSTER: &str = "redis+cluster";
const CLUSTER_TLS: &str = "rediss+cluster";

impl Driver for RedisDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &[
            "redis",
            "rediss",
            "unix",
            SENTINEL,
            SENTINEL_TLS,
            CLUSTER,
            CLUSTER_TLS,
            "valkey",
            "valkeys",
        ]
    }

    fn takes_several_hosts(&self, scheme: &str) -> bool {
        [SENTINEL, SENTINEL_TLS, CLUSTER, CLUSTER_TLS].contains(&scheme)
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
                CERT_FILE.spec,
                KEY_FILE.spec,
                Self::REPLICAS.spec,
                Self::SENTINEL_USER.spec,
                Self::SENTINEL_PASSWORD.spec,
            ]
        }
    }

    fn advice(&self, key: &str) -> Option<&'static str> {
        Some(match key {
            "ssl" | "tls" => {
                "write the scheme `rediss://`, `rediss+sentinel://` or `rediss+cluster://`"
            }
            "ssl_cert_reqs" => {
                "leave it out: with `rediss://`, the server's certificate is always checked"
            }
            "ssl_ca_certs" => "write `ca_file`",
            "ssl_certfile" => "write `cert_file`",
            "ssl_keyfile" => "write `key_file`",
            _ => return None,
        })
    }

    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn check(&self, context: &OpenContext<'_>) -> Result<(), Error> {
        options_of(context).map(drop)
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = options_of(context)?;
        let clock = Arc::clone(context.clock());
        let provider = RedisProvider::with_clock(&options, context.namespace(), clock)?;
        Ok(Arc::new(provider))
    }
}

/// Returns the options of a URL and its keys, checked as far as that goes without the server.
fn options_of(context: &OpenContext<'_>) -> Result<RedisOptions, Error> {
    let options = read_options(context).and_then(|options| options.check().map(|()| options));
    options.map_err(|error| error.with_backend(BACKEND))
}

fn read_options(context: &OpenContext<'_>) -> Result<RedisOptions, Error> {
    let url = context.url();
    let invalid = |text: &str| Err(Error::new(ErrorKind::InvalidUrl, text));
    let path = url.path();
    let mut in_path = None;
    let mut options = match url.scheme() {
        "unix" if url.host().is_some() || path.is_empty() => {
            return invalid("`unix:` takes a socket's path; write unix:/run/redis/redis.sock");
        }
        "unix" => RedisOptions::unix(path),
        SENTINEL | SENTINEL_TLS => of_sentinels(url)?,
        CLUSTER | CLUSTER_TLS => of_cluster(url)?,
        _ => {
            let Some(endpoint) = Endpoint::of_url(url, RedisOptions::DEFAULT_PORT) else {
                return invalid("the URL names no host; write redis://127.0.0.1:6379/0");
            };
            in_path = Some(path.trim_start_matches('/')).filter(|db| !db.is_empty());
            RedisOptions::new(RemoteOptions::new(endpoint))
        }
    };
    let is_tls = matches!(
        url.scheme(),
        "rediss" | "valkeys" | SENTINEL_TLS | CLUSTER_TLS
    );
    options.remote = options.remote.read(
        context,
        is_tls,
        "write rediss://, rediss+sentinel:// or rediss+cluster://",
    )?;
    if let Some(database) = given_once(context, &RedisDriver::DB, in_path)? {
        options = options.database(database);
    }
    if let Some(replicas) = context.value(&RedisDriver::REPLICAS)? {
        options = options.replicas(replicas);
    }
    options.sentinel_user = context.value(&RedisDriver::SENTINEL_USER)?;
    options.sentinel_password = context.value(&RedisDriver::SENTINEL_PASSWORD)?;
    Ok(options)
}

fn of_sentinels(url: &StoreUrl) -> Result<RedisOptions, Error> {
    let name = url.path().trim_matches('/');
    let mut hosts = url.hosts();
    let Some((host, port)) = hosts
        .next()
        .filter(|_| !name.is_empty() && !name.contains('/'))
    else {
        return Err(Error::new(
            ErrorKind::InvalidUrl,
            "the URL takes the hosts of the sentinels and the name by which they watch the primary; write redis+sentinel://sentinel-1,sentinel-2,sentinel-3/mymaster, and a database as `db`",
        ));
    };
    let default = RedisOptions::DEFAULT_SENTINEL_PORT;
    let options = RedisOptions::sentinel(host, port.unwrap_or(default), name);
    Ok(hosts.fold(options, |options, (host, port)| {
        options.and_sentinel(host, port.unwrap_or(default))
    }))
}

fn of_cluster(url: &StoreUrl) -> Result<RedisOptions, Error> {
    let mut hosts = url.hosts();
    let has_path = !url.path().trim_matches('/').is_empty();
    let Some((host, port)) = hosts.next().filter(|_| !has_path) else {
        return Err(Error::new(
            ErrorKind::InvalidUrl,
            "the URL takes some nodes of the cluster, and no database; write redis+cluster://node-1,node-2,node-3",
        ));
    };
    let default = RedisOptions::DEFAULT_PORT;
    let options = RedisOptions::cluster(host, port.unwrap_or(default));
    Ok(hosts.fold(options, |options, (host, port)| {
        options.and_node(host, port.unwrap_or(default))
    }))
}
