//! Requests on the pool of connections.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Clock, Error, ErrorKind, HostInstant};
use lockkeeper_remote::{Failure, Pool, PooledConn};
use serde_json::Value;

use super::Connection;
use super::connector::Connector;
use crate::options::EtcdOptions;
use crate::wire::keys::KeyRange;
use crate::wire::txn::{Txn, TxnReply};
use crate::wire::{Found, range};

/// The connections of a provider.
pub(crate) struct Client {
    pub(crate) connector: Arc<Connector>,
    pool: Pool<Connection>,
    attempt: Duration,
    response_timeout: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A sent transaction. Its reply is not read yet, so dropping this value closes the connection.
pub(crate) struct Sent {
    slot: PooledConn<Connection>,
    connection: Connection,
    /// The process that has sent it.
    pid: u32,
}

impl Client {
    pub(crate) fn new(options: &EtcdOptions, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        options.check()?;
        let remote = &options.remote;
        Ok(Self {
            connector: Arc::new(Connector::new(options)?),
            pool: Pool::new(remote.pool_size),
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
        let left = until.saturating_since(self.clock.now());
        let Some(mut slot) = self.pool.checkout(left, cancel) else {
            let advice = ", or hold and acquire fewer locks at the same time";
            return Err(self.pool.exhausted("", advice));
        };
        // A member that has forgotten the login is asked again.
        let tries = self.connector.members().len().max(2);
        let connector = Arc::clone(&self.connector);
        let connect = move |left| connector.connect(left);
        let clock = &*self.clock;
        slot.run_on_members(tries, clock, until, cancel, connect, |connection, left| {
            connection.call(path, body, left.min(self.response_timeout), cancel)
        })
    }

    /// Writes a transaction into an idle connection, without a wait. `None` if there is no such connection, or its socket
    /// does not take the request at once.
    pub(crate) fn send(&self, txn: Txn) -> Option<Sent> {
        let mut slot = self.pool.try_checkout()?;
        let mut connection = slot.connection.take()?;
        let is_sent = lockkeeper_remote::Connection::is_quiet(&mut connection, Duration::ZERO)
            && connection.send("/v3/kv/txn", &txn.body());
        is_sent.then_some(Sent {
            slot,
            connection,
            pid: std::process::id(),
        })
    }

    /// Reads the reply to a transaction that was [sent](Self::send), until `until` and within the response timeout. Then
    /// the connection is free for others.
    pub(crate) fn collect(&self, owed: Sent, until: HostInstant) -> Result<TxnReply, Failure> {
        let Sent {
            mut slot,
            mut connection,
            pid,
        } = owed;
        if pid != std::process::id() {
            let text = "the release was sent by the parent of this process, which reads the reply";
            return Err(Failure::Unanswered(Error::new(ErrorKind::Unknown, text)));
        }
        let left = until.saturating_since(self.clock.now());
        let reply = connection.read_sent("/v3/kv/txn", left.min(self.response_timeout))?;
        slot.connection = Some(connection);
        Ok(TxnReply::read(&reply))
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
