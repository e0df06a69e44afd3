//! The options of an etcd cluster.

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Endpoint, RemoteOptions, remote_setters};

/// Where the members of a cluster are, and how to talk to them. `Debug` shows no password.
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    pub(crate) remote: RemoteOptions,
}

impl EtcdOptions {
    /// The port of an etcd server for clients by default.
    pub const DEFAULT_PORT: u16 = 2379;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        Self { remote }
    }

    /// A cluster of which one member is at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::new(RemoteOptions::new(Endpoint::tcp(host, port)))
    }

    /// Adds another member, which is asked while those before it are out of reach or without a leader.
    #[must_use]
    pub fn member(mut self, host: impl Into<String>, port: u16) -> Self {
        self.remote.further.push(Endpoint::tcp(host, port));
        self
    }

    remote_setters!(
        "Encrypts, and checks the servers' certificates by the certificates in `ca_file` (PEM), or by the system's where it is `None`."
    );

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.remote.check()?;
        if self.remote.user.is_some() != self.remote.password.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidValue,
                "etcd logs in with a user and a password; give both `user` and `password`, or none",
            ));
        }
        Ok(())
    }
}
