//! One connection to an agent.

pub(crate) mod client;
pub(crate) mod connector;
pub(crate) mod failure;

use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::CancelToken;
use lockkeeper_remote::{
    Counts, Failure, Http, HttpReply, Members, OpenConnection, Server, until_cancelled,
};
use parking_lot::Mutex;

/// What the connections of a store share.
pub(crate) struct Learned {
    /// The agents, each with the addresses of its servers, as it told them last.
    pub(crate) agents: Members<Mutex<Vec<String>>>,
    pub(crate) counts: Arc<Counts>,
}

/// A request. The path contains the query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) path: &'a str,
    pub(crate) body: &'a str,
}

impl<'a> Request<'a> {
    pub(crate) fn get(path: &'a str) -> Self {
        let (method, body) = ("GET", "");
        Self { method, path, body }
    }

    pub(crate) fn put(path: &'a str, body: &'a str) -> Self {
        let method = "PUT";
        Self { method, path, body }
    }
}

/// A connection; dropping it closes it.
pub(crate) struct Connection {
    http: Http,
    open: OpenConnection,
    server: Server,
    /// The number of the agent.
    agent: usize,
    learned: Arc<Learned>,
}

impl lockkeeper_remote::Connection for Connection {
    /// A connection takes no more requests if another agent has replaced its agent.
    fn is_quiet(&mut self, _: Duration) -> bool {
        self.learned.agents.is_serving(self.agent) && self.http.is_quiet()
    }
}

impl Connection {
    /// Sends a request and reads the reply. A cancel closes the connection. The status 404 means that the key or the session
    /// does not exist. The status 409 means that a condition of the transaction did not hold.
    pub(crate) fn call(
        &mut self,
        request: Request<'_>,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<HttpReply, Failure> {
        self.open.add_commands(1);
        let Request { method, path, body } = request;
        let reply = until_cancelled(cancel, Some(self.http.closer()), || {
            self.http.request(method, path, body.as_bytes(), limit)
        });
        reply.and_then(|reply| failure::check(&self.server, reply))
    }
}
