//! Opens a provider by its URL and keys.

use std::sync::Arc;

use lockkeeper_core::{Driver, Error, ErrorKind, Key, KeySpec, LockProvider, OpenContext, Takes};
use lockkeeper_register::RegisterProvider;
use lockkeeper_remote::RemoteOptions;
use lockkeeper_remote::keys::{
    CA_FILE, CERT_FILE, CONNECT_TIMEOUT, KEY_FILE, POOL_SIZE, RESPONSE_TIMEOUT,
};

use crate::{BACKEND, ConsulOptions, ConsulStore};

/// The variable in which Consul's own programs look for a token.
const TOKEN_VARIABLE: &str = "CONSUL_HTTP_TOKEN";

/// Opens `consul://HOST:PORT,HOST:PORT` and `consuls://…` (with TLS).
///
/// [`keys`](Driver::keys) lists its config keys.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConsulDriver;

impl ConsulDriver {
    /// The ACL token.
    pub const ACL_TOKEN: Key<String> = Key::new(
        "acl_token",
        Takes::Text("text"),
        "CONSUL_HTTP_TOKEN of the environment",
        "the ACL token",
    );

    /// The datacenter that has the locks.
    pub const DATACENTER: Key<String> = Key::new(
        "datacenter",
        Takes::Text("text"),
        "that of the agent",
        "the datacenter that has the locks",
    );

    /// Returns the options of a URL and its keys, for a program that uses the same cluster for more than
    /// locks. Talks to no server.
    ///
    /// # Errors
    /// As on opening, for everything that can be checked without the server.
    pub fn options(context: &OpenContext<'_>) -> Result<ConsulOptions, Error> {
        let options = options(context).and_then(|options| options.check().map(|()| options));
        options.map_err(|error| error.with_backend(BACKEND))
    }
}

impl Driver for ConsulDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["consul", "consuls"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const {
            &[
                Self::ACL_TOKEN.spec,
                Self::DATACENTER.spec,
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
        match key {
            "ssl" | "tls" => Some("write the scheme `consuls://`"),
            "dc" => Some("write `datacenter`"),
            "token" | "user" | "password" => Some("give an ACL token as `acl_token`"),
            _ => None,
        }
    }

    /// A grant of a name that was used before has a larger epoch than the clock, and than the name's last one.
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
        let store = ConsulStore::open(&options, context.namespace(), Arc::clone(&clock))?;
        Ok(Arc::new(RegisterProvider::new(store, clock)?))
    }
}

fn options(context: &OpenContext<'_>) -> Result<ConsulOptions, Error> {
    let ports = [ConsulOptions::DEFAULT_PORT, ConsulOptions::DEFAULT_TLS_PORT];
    let remote = RemoteOptions::of_cluster(context, ["consul", "consuls"], ports)?;
    if !context.url().path().trim_matches('/').is_empty() {
        let text = "a Consul URL has no path; separate applications by `namespace`";
        return Err(Error::new(ErrorKind::InvalidUrl, text));
    }
    let token = context.value(&ConsulDriver::ACL_TOKEN)?;
    let of_environment = || std::env::var(TOKEN_VARIABLE).ok();
    Ok(ConsulOptions {
        token: token.or_else(of_environment).filter(|it| !it.is_empty()),
        datacenter: context.value(&ConsulDriver::DATACENTER)?,
        ..ConsulOptions::new(remote)
    })
}
