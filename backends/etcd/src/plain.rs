//! A connection without locks of this library, for the programs of this project that compare and measure.
//!
//! Hidden, and not part of the interface: it has what those programs need, and nothing else. It is in this package
//! because it connects as a URL says, with members, TLS and login: a client of its own would repeat that.

use std::net::TcpStream;
use std::time::Duration;

use lockkeeper_core::Error;
use lockkeeper_remote::Failure;
use serde_json::Value;

use crate::connection::Connection;
use crate::connection::connector::Connector;
use crate::options::EtcdOptions;
pub use crate::wire::{decoded, encoded, number};

/// A connection to one member. Dropping it closes it.
pub struct PlainClient(Connection);

impl PlainClient {
    /// Connects to the first member that takes the connection, and logs in, within the connect timeout.
    ///
    /// # Errors
    /// As on opening a provider.
    pub fn connect(options: &EtcdOptions) -> Result<Self, Error> {
        options.check()?;
        let connection = Connector::new(options)?.connect(options.remote.connect_timeout)?;
        Ok(Self(connection))
    }

    /// Returns the socket. Shutting it down ends a call, from any thread.
    pub fn socket(&self) -> &TcpStream {
        self.0.socket()
    }

    /// Sends a request to the JSON gateway and reads the reply: `call("/v3/kv/range", …)`. `None`: there is no reply
    /// within `limit`, or the server cannot tell what came of the request; the connection is of no use then.
    ///
    /// # Errors
    /// The server's own error, or the connection has failed.
    pub fn call(
        &mut self,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<Option<Value>, Error> {
        match self.0.call(path, body, limit, None) {
            Ok(reply) => Ok(Some(reply)),
            Err(Failure::Unanswered(_)) => Ok(None),
            Err(failure) => Err(failure.into_error()),
        }
    }
}
