//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, KeySpec, LockProvider, OpenContext};
use lockkeeper_remote::RemoteOptions;
use lockkeeper_remote::keys::{
    CA_FILE, CERT_FILE, CONNECT_TIMEOUT, KEY_FILE, PASSWORD, POOL_SIZE, RESPONSE_TIMEOUT, USER,
};

use crate::{BACKEND, EtcdOptions, EtcdProvider};

/// Opens `etcd://HOST:PORT,HOST:PORT` and `etcds://…` (with TLS).
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct EtcdDriver;

impl EtcdDriver {
    /// Returns the options of a URL and its keys, for a program that uses the same cluster for more than
    /// locks. Talks to no server.
    ///
    /// # Errors
    /// As on opening, for everything that can be checked without the server.
    pub fn options(context: &OpenContext<'_>) -> Result<EtcdOptions, Error> {
        let options = options(context).and_then(|options| options.check().map(|()| options));
        options.map_err(|error| error.with_backend(BACKEND))
    }
}

impl Driver for EtcdDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["etcd", "etcds"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const {
            &[
                USER.spec,
                PASSWORD.spec,
                POOL_SIZE.spec,
                CONNECT_TIMEOUT.spec,
                RESPONSE_TIMEOUT.spec,
                CA_FILE.spec,
                CERT_FILE.spec,
                KEY_FILE.spec,
            ]
        }
    }

    fn advice(&self, key: &str) -> Option<&'static str> {
        matches!(key, "ssl" | "tls").then_some("write the scheme `etcds://`")
    }

    /// Each opening raises the epochs of the namespace to the clock.
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
        let provider = EtcdProvider::with_clock(&options, context.namespace(), clock)?;
        Ok(Arc::new(provider))
    }
}

fn options(context: &OpenContext<'_>) -> Result<EtcdOptions, Error> {
    let ports = [EtcdOptions::DEFAULT_PORT; 2];
    let remote = RemoteOptions::of_cluster(context, ["etcd", "etcds"], ports)?;
    if !context.url().path().trim_matches('/').is_empty() {
        let text = "an etcd URL has no path; separate applications by `namespace`";
        return Err(Error::new(ErrorKind::InvalidUrl, text));
    }
    Ok(EtcdOptions::new(remote))
}
