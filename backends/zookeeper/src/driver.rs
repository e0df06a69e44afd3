//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, KeySpec, LockProvider, OpenContext};
use lockkeeper_register::RegisterProvider;
use lockkeeper_remote::RemoteOptions;
use lockkeeper_remote::keys::{
    CA_FILE, CERT_FILE, CONNECT_TIMEOUT, KEY_FILE, PASSWORD, RESPONSE_TIMEOUT, USER,
};

use crate::{BACKEND, ZooKeeperOptions, ZooKeeperStore};

/// Opens `zookeeper://HOST:PORT,HOST:PORT/CHROOT` and `zookeepers://…` (with TLS).
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZooKeeperDriver;

impl ZooKeeperDriver {
    /// Returns the options of a URL and its keys, for a program that uses the same ensemble for more than
    /// locks. Talks to no server.
    ///
    /// # Errors
    /// As on opening, for everything that can be checked without the server.
    pub fn options(context: &OpenContext<'_>) -> Result<ZooKeeperOptions, Error> {
        let options = options(context).and_then(|options| options.check().map(|()| options));
        options.map_err(|error| error.with_backend(BACKEND))
    }
}

impl Driver for ZooKeeperDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["zookeeper", "zookeepers"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const {
            &[
                USER.spec,
                PASSWORD.spec,
                CONNECT_TIMEOUT.spec,
                RESPONSE_TIMEOUT.spec,
                CA_FILE.spec,
                CERT_FILE.spec,
                KEY_FILE.spec,
            ]
        }
    }

    fn advice(&self, key: &str) -> Option<&'static str> {
        match key {
            "ssl" | "tls" => Some("write the scheme `zookeepers://`"),
            "chroot" | "path" => Some("write it as the path of the URL: zookeeper://HOST/app"),
            "session_timeout" => Some("the `ttl` is the time-out of the session"),
            _ => None,
        }
    }

    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn takes_several_hosts(&self, _: &str) -> bool {
        true
    }

    fn check(&self, context: &OpenContext<'_>) -> Result<(), Error> {
        Self::options(context).map(drop)
    }

    fn open(&self, context: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let options = Self::options(context)?;
        let clock = Arc::clone(context.clock());
        let store = ZooKeeperStore::open(&options, context.namespace(), Arc::clone(&clock))?;
        Ok(Arc::new(RegisterProvider::new(store, clock)?))
    }
}

fn options(context: &OpenContext<'_>) -> Result<ZooKeeperOptions, Error> {
    let ports = [ZooKeeperOptions::DEFAULT_PORT; 2];
    let remote = RemoteOptions::of_cluster(context, ["zookeeper", "zookeepers"], ports)?;
    Ok(ZooKeeperOptions::new(remote).chroot(context.url().path()))
}
