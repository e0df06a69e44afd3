//! Requests on the pool of connections.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Clock, Error, HostInstant};
use lockkeeper_remote::{Endpoint, Failure, Pool, Server};
use serde_json::Value;

use super::Connection;
use super::connector::Connector;
use crate::options::EtcdOptions;
use crate::wire::keys::KeyRange;
use crate::wire::txn::{Txn, TxnReply};
use crate::wire::{Found, range};

/// The connections of a provider.
pub(crate) struct Client {
    pub(crate) connector: Connector,
    pool: Pool<Connection>,
    pool_size: u32,
    attempt: Duration,
    response_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Client {
    pub(crate) fn new(options: &EtcdOptions, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        options.check()?;
        let remote = &options.remote;
        Ok(Self {
            connector: Connector::new(options)?,
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

    /// Sends a request and reads the reply, until `until` and within the response timeout. If the first
    /// member cannot serve, asks another one. A cancel closes the connection, and so ends the call.
    pub(crate) fn call(
        &self,
        path: &str,
        body: &Value,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Value, Failure> {
        let left = || until.saturating_since(self.clock.now());
        let Some(mut slot) = self.pool.checkout(left()) else {
            let advice = ", or hold and acquire fewer locks at the same time";
            let server = Server::new("etcd", &Endpoint::tcp("", 0));
            let error = server.exhausted(self.pool_size, "", advice);
            return Err(Failure::NotSent(error));
        };
        // A member that has forgotten the login is asked again.
        let mut untried = self.connector.members.len().max(2);
        loop {
            let connect = |left| self.connector.connect(left);
            let answer = slot.run(&*self.clock, until, connect, |connection, left| {
                connection.call(path, body, left.min(self.response_timeout), cancel)
            });
            untried = untried.saturating_sub(1);
            match answer {
                Err(Failure::Closed(_)) if untried > 0 && !left().is_zero() => {}
                answer => return answer,
            }
        }
    }

    /// Carries out a transaction.
    pub(crate) fn txn(
        &self,
        txn: Txn,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<TxnReply, Failure> {
        let reply = self.call("/v3/kv/txn", &txn.body(), until, cancel)?;
        Ok(TxnReply::read(&reply))
    }

    /// Reads keys.
    pub(crate) fn read(
        &self,
        keys: &KeyRange,
        until: HostInstant,
        cancel: Option<&CancelToken>,
    ) -> Result<Found, Failure> {
        let reply = self.call("/v3/kv/range", &range(keys), until, cancel)?;
        Ok(Found::read(&reply))
    }
}
