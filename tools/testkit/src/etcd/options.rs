//! Options for starting a server.

use std::io;
use std::path::Path;

use crate::tls::Certificates;

/// Options for starting a server.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    pub(super) args: Vec<String>,
    /// Makes the certificates, if the server speaks TLS.
    pub(super) tls: Option<fn(&Path) -> io::Result<Certificates>>,
    pub(super) wants_client_certificate: bool,
}

impl EtcdOptions {
    /// Returns the default: no login, no TLS.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an argument to the command line: `arg("--election-timeout=2000")`.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Listens for TLS on a second port, with certificates made for the server; clients need none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Certificates::make);
        self
    }

    /// Listens for TLS, and takes clients alone whose certificate the same authority has signed.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn client_certificates(mut self) -> Self {
        self.wants_client_certificate = true;
        self.tls()
    }
}
