//! How a server is started.

use std::io;
use std::path::Path;

use crate::tls::Certificates;

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct MySqlOptions {
    pub(super) args: Vec<String>,
    pub(super) show_locks: bool,
    /// What makes the certificates, where TLS is wanted.
    pub(super) tls: Option<fn(&Path) -> io::Result<Certificates>>,
}

impl MySqlOptions {
    /// Without TLS, binary log, performance schema and anything that makes data survive a power cut.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of the server's configuration: `config("read-only", "ON")`, or `config("max-connections", "10")`,
    /// which is the least that MariaDB takes. It comes after the kit's own.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.args.push(format!("--{name}={value}"));
        self
    }

    /// Has the server keep a list of the named locks that are held, for `MySqlClient::held`. Without it,
    /// MySQL starts quicker and takes less memory.
    #[must_use]
    pub fn show_locks(mut self) -> Self {
        self.show_locks = true;
        self
    }

    /// Speaks TLS with those who want it, on the same port, with certificates made for it; clients need
    /// none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Certificates::make);
        self
    }
}
