//! The options of a Consul cluster.

use std::fmt;

use lockkeeper_core::{Error, ErrorKind};
use lockkeeper_remote::{Endpoint, RemoteOptions, remote_setters};

/// Where the agents of a cluster are, and how to talk to them. `Debug` shows no token.
#[derive(Clone)]
pub struct ConsulOptions {
    pub(crate) remote: RemoteOptions,
    pub(crate) token: Option<String>,
    pub(crate) datacenter: Option<String>,
}

impl ConsulOptions {
    /// The port of an agent for HTTP by default.
    pub const DEFAULT_PORT: u16 = 8500;
    /// The port of an agent for HTTPS, as the manual proposes it.
    pub const DEFAULT_TLS_PORT: u16 = 8501;

    pub(crate) fn new(remote: RemoteOptions) -> Self {
        Self {
            remote,
            token: None,
            datacenter: None,
        }
    }

    /// A cluster of which one agent is at a host and port.
    pub fn tcp(host: impl Into<String>, port: u16) -> Self {
        Self::new(RemoteOptions::new(Endpoint::tcp(host, port)))
    }

    /// Adds another agent, which is asked while those before it are out of reach or without a leader.
    #[must_use]
    pub fn agent(mut self, host: impl Into<String>, port: u16) -> Self {
        self.remote.further.push(Endpoint::tcp(host, port));
        self
    }

    /// The ACL token. Default: none.
    #[must_use]
    pub fn acl_token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// The datacenter that has the locks. Default: that of the agent.
    #[must_use]
    pub fn datacenter(mut self, datacenter: impl Into<String>) -> Self {
        self.datacenter = Some(datacenter.into());
        self
    }

    remote_setters!(
        "Encrypts, and checks the agents' certificates by the certificates in `ca_file` (PEM), or by the system's where it is `None`."
    );

    /// Returns the part of each query that names the datacenter.
    pub(crate) fn datacenter_query(&self) -> Option<String> {
        let datacenter = self.datacenter.as_ref();
        datacenter.map(|it| format!("dc={it}"))
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let invalid = |text| Err(Error::new(ErrorKind::InvalidValue, text));
        self.remote.check()?;
        if self.remote.user.is_some() || self.remote.password.is_some() {
            return invalid("Consul knows no user and password; give an ACL token as `acl_token`");
        }
        let is_header = |it: &String| it.bytes().all(|byte| byte.is_ascii_graphic());
        if !self.token.iter().all(is_header) {
            return invalid("`acl_token` has a character that no ACL token has");
        }
        let is_name = |it: &String| {
            let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
            !it.is_empty() && it.bytes().all(is_part)
        };
        if !self.datacenter.iter().all(is_name) {
            return invalid("`datacenter` takes letters, digits, - and _");
        }
        Ok(())
    }
}

impl fmt::Debug for ConsulOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulOptions")
            .field("remote", &self.remote)
            .field("datacenter", &self.datacenter)
            .finish_non_exhaustive()
    }
}
