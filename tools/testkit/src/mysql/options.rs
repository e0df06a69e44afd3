//! Options for starting a server.

use crate::tls::{MakeCertificates, tls_setter};

/// Options for starting a server.
#[derive(Debug, Clone, Default)]
pub struct MySqlOptions {
    pub(super) args: Vec<String>,
    pub(super) show_locks: bool,
    /// Makes the certificates, if the server speaks TLS.
    pub(super) tls: Option<MakeCertificates>,
}

impl MySqlOptions {
    /// Returns the default: no TLS, no binary log, no performance schema, no durability.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line to the server's configuration: `config("read-only", "ON")`, or `config("max-connections", "10")`,
    /// which is the least that MariaDB takes. It comes after the lines of this crate.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.args.push(format!("--{name}={value}"));
        self
    }

    /// Makes the server list the named locks that are held, for `MySqlClient::held`. Without it, MySQL
    /// starts quicker and takes less memory.
    #[must_use]
    pub fn show_locks(mut self) -> Self {
        self.show_locks = true;
        self
    }

    tls_setter!(
        "Offers TLS on the same port, with certificates made for the server; clients need none."
    );
}
