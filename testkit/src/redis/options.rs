//! How a server is started.

use std::io;
use std::path::Path;

use super::RedisServer;
use crate::tls::Certificates;

/// How a server is started.
#[derive(Debug, Clone, Default)]
pub struct RedisOptions {
    pub(super) args: Vec<String>,
    pub(super) password: Option<String>,
    /// What makes the certificates, where TLS is wanted.
    pub(super) tls: Option<fn(&Path) -> io::Result<Certificates>>,
}

impl RedisOptions {
    /// Without password, without TLS, without persistence.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A line of the server's configuration: `config("maxmemory", ["1mb"])`. It comes after the kit's own.
    #[must_use]
    pub fn config<V: Into<String>>(
        mut self,
        name: &str,
        values: impl IntoIterator<Item = V>,
    ) -> Self {
        self.args.push(format!("--{name}"));
        self.args.extend(values.into_iter().map(Into::into));
        self
    }

    /// The default user's password; the kit's own commands sign in with it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config("requirepass", [password])
            .config("masterauth", [password])
    }

    /// Listens for TLS on a second port, with certificates made for it; clients need none.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Certificates::make);
        self
    }

    /// A read-only replica of `primary`; [`RedisServer::wait_for_sync`] waits for its first copy.
    #[must_use]
    pub fn replica_of(self, primary: &RedisServer) -> Self {
        let replica = self.config(
            "replicaof",
            ["127.0.0.1".to_owned(), primary.addr().port().to_string()],
        );
        match primary.password() {
            Some(password) => replica.config("masterauth", [password]),
            None => replica,
        }
    }
}
