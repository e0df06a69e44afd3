//! Options for starting a server.

use crate::tls::{MakeCertificates, tls_setter};

/// Options for starting a server.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub(super) settings: Vec<(String, String)>,
    /// How [`PostgresServer::USER`](crate::PostgresServer::USER) logs in, in the words of pg_hba.conf.
    pub(super) login: &'static str,
    /// Makes the certificates, if the server speaks TLS.
    pub(super) tls: Option<MakeCertificates>,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl PostgresOptions {
    /// Returns the default: login by SCRAM, no TLS, no durability.
    #[must_use]
    pub fn new() -> Self {
        Self {
            settings: Vec::new(),
            login: "scram-sha-256",
            tls: None,
        }
    }

    /// Adds a setting: `config("max_connections", "10")`. It comes after those of this crate.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the login method of pg_hba.conf: `md5`, `password` or `trust`. The default is `scram-sha-256`.
    #[must_use]
    pub fn login(mut self, method: &'static str) -> Self {
        self.login = method;
        self
    }

    /// Keeps what was committed over a crash (`fsync`).
    #[must_use]
    pub fn durable(self) -> Self {
        self.config("fsync", "on")
    }

    tls_setter!(
        "Offers TLS on the same port, with certificates made for the server; clients need none."
    );
}
