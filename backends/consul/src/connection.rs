//! One connection to an agent.

pub(crate) mod client;
pub(crate) mod connector;
pub(crate) mod failure;

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, ErrorKind};
use lockkeeper_remote::{Counts, Failure, Http, HttpReply, OpenConnection, Server};
use parking_lot::Mutex;

/// What the connections of a store share.
#[derive(Default)]
pub(crate) struct Learned {
    /// The agent that is asked first: this number modulo the number of agents. It only grows.
    preferred: AtomicUsize,
    /// The addresses of the servers, as an agent told them last.
    servers: Mutex<Vec<String>>,
    pub(crate) counts: Arc<Counts>,
}

impl Learned {
    /// Makes the next connection use another agent than this one.
    fn avoid(&self, agent: usize) {
        let (set, next) = (Ordering::Relaxed, agent.wrapping_add(1));
        // It fails if another thread has done so.
        let _ = self.preferred.compare_exchange(agent, next, set, set);
    }
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
        let preferred = self.learned.preferred.load(Ordering::Relaxed);
        self.agent == preferred && self.http.is_quiet()
    }
}

impl Connection {
    /// Sends a request and reads the reply. A cancel closes the connection, which is no failure of the agent. The status
    /// The status 404 means that the key or the session does not exist. The status 409 means that a condition of the
    /// transaction did not hold.
    pub(crate) fn call(
        &mut self,
        request: Request<'_>,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<HttpReply, Failure> {
        self.open.counts().add_commands(1);
        let socket = Arc::clone(self.http.socket());
        let close = move || drop(socket.shutdown(Shutdown::Both));
        let registered = cancel.map(|cancel| cancel.on_cancel(close));
        let Request { method, path, body } = request;
        let reply = self.http.request(method, path, body.as_bytes(), limit);
        drop(registered);
        if cancel.is_some_and(CancelToken::is_cancelled) {
            return Err(Failure::Unanswered(Error::new(
                ErrorKind::Unknown,
                "the acquisition was cancelled before a reply came",
            )));
        }
        let reply = reply.and_then(|reply| failure::check(&self.server, reply));
        if !matches!(reply, Ok(_) | Err(Failure::Refused(_))) {
            self.learned.avoid(self.agent);
        }
        reply
    }
}
