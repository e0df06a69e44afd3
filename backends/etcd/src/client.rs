//! Requests on the pool of connections.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Clock, Error, HostInstant};
use lockkeeper_remote::{Failure, Pool, Server};
use serde_json::Value;

use crate::connection::{Connection, Connector};
use crate::options::EtcdOptions;
use crate::wire::Txn;

/// The connections of a provider.
pub(crate) struct Client {
    pub(crate) connector: Arc<Connector>,
    pool: Pool<Connection>,
    pool_size: u32,
    attempt: Duration,
    response_timeout: Duration,
    clock: Arc<dyn Clock>,
}

impl Client {
    pub(crate) fn new(options: &EtcdOptions, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        options.check()?;
        let remote = &options.remote;
        Ok(Self {
            connector: Arc::new(Connector::new(options)?),
            pool: Pool::new(remote.pool_size),
            pool_size: remote.pool_size,
            attempt: remote.attempt_time(),
            response_timeout: remote.response_timeout,
            clock,
        })
    }

    /// Returns the time that a single attempt may take.
    pub(crate) fn attempt(&self) -> Duration {
        self.attempt
    }

    /// Sends a request and reads the reply, until `until` and within the response timeout. Another member
    /// is asked if the first cannot serve.
    pub(crate) fn call(
        &self,
        path: &str,
        body: &Value,
        until: HostInstant,
    ) -> Result<Value, Failure> {
        self.cancellable(path, body, until, None)
    }

    /// As [`call`](Self::call), but a cancel closes the connection, and ends the call with that.
    pub(crate) fn cancellable(
        &self,
        path: &str,
        body: &Value,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Value, Failure> {
        let left = || until.saturating_since(self.clock.now());
        let Some(mut slot) = self.pool.checkout(left()) else {
            let advice = ", or hold and acquire fewer locks at the same time";
            let server = Server::new("etcd", &lockkeeper_remote::Endpoint::tcp("", 0));
            return Err(Failure::NotSent(server.exhausted(
                self.pool_size,
                "",
                advice,
            )));
        };
        // A member that has forgotten the login is asked again.
        let mut untried = self.connector.members().max(2);
        loop {
            let connect = |left| self.connector.connect(left);
            let answer = slot.run(&*self.clock, until, connect, |connection, left| {
                connection.cancellable(path, body, left.min(self.response_timeout), cancel)
            });
            untried = untried.saturating_sub(1);
            match answer {
                Err(Failure::Closed(_)) if untried > 0 && !left().is_zero() => {}
                answer => return answer,
            }
        }
    }

    /// Carries out a transaction.
    pub(crate) fn txn(&self, txn: Txn, until: HostInstant) -> Result<Value, Failure> {
        self.call("/v3/kv/txn", &txn.body(), until)
    }
}
