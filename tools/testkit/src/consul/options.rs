//! Options for starting a server.

use std::time::Duration;

use crate::tls::{MakeCertificates, tls_setter};

/// Options for starting a server.
#[derive(Debug, Clone)]
pub struct ConsulOptions {
    pub(super) config: String,
    pub(super) min_ttl: Duration,
    /// Makes the certificates, if the server speaks TLS.
    pub(super) tls: Option<MakeCertificates>,
}

impl Default for ConsulOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl ConsulOptions {
    /// Returns the default: no ACLs, no TLS, and sessions of half a second or more, so that tests need not wait for
    /// Consul's own 10 s.
    #[must_use]
    pub fn new() -> Self {
        Self {
            config: String::new(),
            min_ttl: Duration::from_millis(500),
            tls: None,
        }
    }

    /// Adds to the configuration, in HCL.
    #[must_use]
    pub fn config(mut self, hcl: &str) -> Self {
        self.config.push_str(hcl);
        self.config.push('\n');
        self
    }

    /// Refuses clients without a token. `master` is the token that may do everything.
    #[must_use]
    pub fn acl(self, master: &str) -> Self {
        self.config(&format!(
            r#"acl {{ enabled = true default_policy = "deny" tokens {{ master = "{master}" }} }}"#
        ))
    }

    /// Sets the shortest ttl of a session.
    #[must_use]
    pub fn min_ttl(mut self, min_ttl: Duration) -> Self {
        self.min_ttl = min_ttl;
        self
    }

    tls_setter!(
        "Listens for TLS on a second port, with certificates made for the server; clients need none."
    );
}
