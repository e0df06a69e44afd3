//! A connection without locks of this library, for the programs of this project that compare and measure.
//!
//! Hidden, and not part of the interface: it has what those programs need, and nothing else. It is in this package
//! because it connects as a URL says, with TLS and a token: a client of its own would repeat that.

use std::time::Duration;

use lockkeeper_core::{CancelToken, Error};
use lockkeeper_remote::{Failure, HttpReply};

use crate::connection::client::with_query;
use crate::connection::connector::Connector;
use crate::connection::{Connection, Request};
use crate::options::ConsulOptions;

/// A connection to one agent. Dropping it closes it.
pub struct PlainClient {
    connection: Connection,
    datacenter: Option<String>,
}

impl PlainClient {
    /// Connects to the first agent that takes the connection, within the connect timeout.
    ///
    /// # Errors
    /// As on opening a store.
    pub fn connect(options: &ConsulOptions) -> Result<Self, Error> {
        options.check()?;
        let connector = Connector::new(options)?;
        Ok(Self {
            connection: connector.connect(options.remote.connect_timeout)?,
            datacenter: options.datacenter_query(),
        })
    }

    /// Sends a request and reads the reply: `call("PUT", "/v1/txn", &[], "[]", …)`. `None`: there is no reply within
    /// `limit`, or the wait was cancelled; the connection is of no use then.
    ///
    /// # Errors
    /// The agent's own error, or the connection has failed.
    pub fn call(
        &mut self,
        method: &'static str,
        (path, query): (&str, &[&str]),
        body: &str,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<Option<HttpReply>, Error> {
        let path = &with_query(path, query, self.datacenter.as_deref());
        let request = Request { method, path, body };
        match self.connection.call(request, limit, cancel) {
            Ok(reply) => Ok(Some(reply)),
            Err(Failure::Unanswered(_)) => Ok(None),
            Err(failure) => Err(failure.into_error()),
        }
    }
}
