//! Options for starting a server.

use crate::tls::{MakeCertificates, tls_setter};

/// Options for starting a server.
#[derive(Debug, Clone, Default)]
pub struct EtcdOptions {
    pub(super) args: Vec<String>,
    /// Makes the certificates, if the server speaks TLS.
    pub(super) tls: Option<MakeCertificates>,
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

    tls_setter!(
        "Listens for TLS on a second port, with certificates made for the server; clients need none."
    );

    /// Listens for TLS, and takes clients alone whose certificate the same authority has signed.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn client_certificates(mut self) -> Self {
        self.wants_client_certificate = true;
        self.tls()
    }
}
