//! The options of a ZooKeeper ensemble.

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Endpoint, RemoteOptions, remote_setters};

/// Where the members of an ensemble are, and how to talk to them. `Debug` shows no password.
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    pub(crate) remote: RemoteOptions,
    /// The path below which all nodes are: empty, or `/A/B`.
    pub(crate) chroot: String,
}

impl ZooKeeperOptions {
    /// The port of a ZooKeeper server for clients by default.
    pub const DEFAULT_PORT: u16 = 2181;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        Self {
            remote,
            chroot: String::new(),
        }
    }

    /// Makes the options of an ensemble of which one member is at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::new(RemoteOptions::new(Endpoint::tcp(host, port)))
    }

    /// Adds another member, which is asked while those before it are out of reach or without a leader.
    #[must_use]
    pub fn member(mut self, host: impl Into<String>, port: u16) -> Self {
        self.remote.further.push(Endpoint::tcp(host, port));
        self
    }

    /// Sets the path below which all nodes are made, such as `/app`. The node must exist. The default is the root.
    #[must_use]
    pub fn chroot(mut self, path: &str) -> Self {
        let path = path.trim_matches('/');
        self.chroot = match path {
            "" => String::new(),
            path => format!("/{path}"),
        };
        self
    }

    remote_setters!(
        "Encrypts, and checks the servers' certificates by the certificates in `ca_file` (PEM), or by the system's where it is `None`."
    );

    pub(crate) fn check(&self) -> Result<(), Error> {
        self.remote.check()?;
        let invalid = |text| Err(Error::new(ErrorKind::InvalidValue, text));
        let (user, password) = (&self.remote.user, &self.remote.password);
        if user.is_some() != password.is_some() {
            return invalid(
                "ZooKeeper's digest has a user and a password; give both `user` and `password`, or none",
            );
        }
        if user.as_ref().is_some_and(|user| user.contains(':')) {
            return invalid(
                "the user of ZooKeeper's digest has no colon in it; use another `user`",
            );
        }
        let is_invalid = |part: &str| {
            matches!(part, "" | "." | "..") || part.contains(|it: char| it.is_control())
        };
        if self.chroot.split('/').skip(1).any(is_invalid) {
            return invalid(
                "the URL's path is no path of a ZooKeeper node; write it as in zookeeper://HOST/app/locks",
            );
        }
        Ok(())
    }
}
