//! Options for starting a server.

use crate::tls::{MakeCertificates, tls_setter};

/// Options for starting a server.
#[derive(Debug, Clone, Default)]
pub struct ZooKeeperOptions {
    pub(super) lines: Vec<String>,
    pub(super) java: Vec<String>,
    /// Makes the certificates, if the server speaks TLS.
    pub(super) tls: Option<MakeCertificates>,
}

impl ZooKeeperOptions {
    /// Returns the default: no TLS, and sessions of 400 ms to a day.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line to the configuration: `line("maxSessionTimeout=4000")`. The last line about a setting counts.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        self.lines.push(line.to_owned());
        self
    }

    /// Adds an option of Java: `java("-Dreadonlymode.enabled=true")`.
    #[must_use]
    pub fn java(mut self, option: &str) -> Self {
        self.java.push(option.to_owned());
        self
    }

    tls_setter!(
        "Listens for TLS on a second port, with certificates made for the server; clients need none."
    );
}
