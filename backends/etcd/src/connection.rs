//! One connection to a member.

pub(crate) mod client;
mod clusters;
pub(crate) mod connector;
pub(crate) mod failure;
mod watch;

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lockkeeper_core::{CancelToken, Error, ErrorKind};
use lockkeeper_remote::{
    Counts, Failure, Http, HttpReply, Members, OpenConnection, Server, nothing_granted, senseless,
    until_cancelled,
};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::wire::encoded;
use failure::{Meaning, meaning};
pub(crate) use watch::Watch;

/// The members, each with the id of its cluster, as the member told it last; 0 if unknown.
pub(crate) type EtcdMembers = Members<AtomicU64>;

/// What the connections of a provider share.
pub(crate) struct Learned {
    pub(crate) members: EtcdMembers,
    /// The token of the last login.
    token: Mutex<Option<String>>,
    pub(crate) counts: Arc<Counts>,
}

/// A connection; dropping it closes it.
pub(crate) struct Connection {
    http: Http,
    open: OpenConnection,
    server: Server,
    /// The number of the member. `None` if the connection is only for a single question: then its failure says
    /// nothing about the member that serves requests.
    member: Option<usize>,
    token: Option<String>,
    learned: Arc<Learned>,
}

impl lockkeeper_remote::Connection for Connection {
    /// A connection takes no more requests if another member has replaced its member.
    fn is_quiet(&mut self, _: Duration) -> bool {
        let is_serving = |member| self.learned.members.is_serving(member);
        self.member.is_some_and(is_serving) && self.http.is_quiet()
    }
}

impl Connection {
    /// Returns the socket.
    pub(crate) fn socket(&self) -> &TcpStream {
        self.http.socket()
    }

    /// Returns whether new connections use another login than this one.
    fn login_has_ended(&self) -> bool {
        self.token.is_some() && *self.learned.token.lock() != self.token
    }

    /// Sends a request and reads the reply. A cancel closes the connection, which is no failure of the member.
    pub(crate) fn call(
        &mut self,
        path: &str,
        body: &Value,
        limit: Duration,
        cancel: Option<&CancelToken>,
    ) -> Result<Value, Failure> {
        self.open.add_commands(1);
        let reply = until_cancelled(cancel, Some(self.http.closer()), || {
            self.http.post(path, body.to_string().as_bytes(), limit)
        });
        match reply {
            Err(failure) if cancel.is_some_and(CancelToken::is_cancelled) => Err(failure),
            reply => self.answer(path, reply),
        }
    }

    /// Writes a request without waiting for anything, and returns whether it did: see [`Http::post_at_once`]. Otherwise the
    /// connection is of no use.
    fn send(&mut self, path: &str, body: &Value) -> bool {
        self.open.add_commands(1);
        let sent = self.http.post_at_once(path, body.to_string().as_bytes());
        sent.unwrap_or(false)
    }

    /// Reads the reply to a request that was [sent](Self::send). After a failure, the connection is of no use.
    fn read_sent(&mut self, path: &str, limit: Duration) -> Result<Value, Failure> {
        let reply = self.http.read_posted(limit);
        self.answer(path, reply)
    }

    /// Returns the answer to a request, if its reply is one.
    fn answer(&self, path: &str, reply: Result<HttpReply, Failure>) -> Result<Value, Failure> {
        let reply = self.noted(reply)?;
        if reply.status == 200
            && let Ok(value) = serde_json::from_slice::<Value>(&reply.body)
            && (has_header(&value) || path.starts_with("/v3/maintenance/"))
        {
            return Ok(value);
        }
        Err(self.refused(&reply))
    }

    /// Makes a request that cannot grant anything.
    fn ask(&mut self, path: &str, body: &Value, limit: Duration) -> Result<Value, Error> {
        let reply = self.call(path, body, limit, None);
        reply.map_err(nothing_granted)
    }

    /// Asks for the member's status. From 3.5 on, etcd checks the user's permission; without it, the result is only
    /// a header.
    fn status(&mut self, limit: Duration) -> Result<Value, Error> {
        match self.ask("/v3/maintenance/status", &json!({}), limit) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self.header(limit),
            status => status,
        }
    }

    /// Asks for a reply with a header. Each user who may lock may read the key, which need not exist.
    fn header(&mut self, limit: Duration) -> Result<Value, Error> {
        let body = json!({ "key": encoded("lockkeeper/"), "serializable": true });
        self.ask("/v3/kv/range", &body, limit)
    }

    /// Asks for the id of the member's cluster.
    fn cluster(&mut self, limit: Duration) -> Result<u64, Error> {
        let reply = self.header(limit)?;
        let id = reply.pointer("/header/cluster_id").and_then(Value::as_str);
        id.and_then(|id| id.parse().ok()).ok_or_else(senseless)
    }

    /// After a failure, makes the next connections use another member, and log in again. A new cluster at the same
    /// addresses may not reply to the former token.
    fn noted<T>(&self, reply: Result<T, Failure>) -> Result<T, Failure> {
        if reply.is_err() {
            self.avoid();
            self.forget_login();
        }
        reply
    }

    fn avoid(&self) {
        if let Some(member) = self.member {
            self.learned.members.avoid(member);
        }
    }

    fn forget_login(&self) {
        let mut token = self.learned.token.lock();
        if *token == self.token {
            *token = None;
        }
    }

    fn refused(&self, reply: &HttpReply) -> Failure {
        match meaning(&self.server, reply.status, &reply.body) {
            Meaning::Other(failure) => {
                if matches!(failure, Failure::Unanswered(_)) {
                    self.avoid();
                }
                failure
            }
            Meaning::MemberUnfit(error) => {
                self.avoid();
                Failure::Closed(error)
            }
            Meaning::LoginGone => {
                self.forget_login();
                Failure::Closed(self.server.closed())
            }
        }
    }
}

/// Returns whether a reply is from etcd. All replies that a lock needs have a header; replies to keep-alives have
/// it in a result.
fn has_header(reply: &Value) -> bool {
    let header = reply.get("header");
    header.or_else(|| reply.pointer("/result/header")).is_some()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;

    use super::connector::Connector;
    use super::*;
    use crate::EtcdOptions;

    /// Where a member has failed, all connections to it are closed.
    #[test]
    fn cancel_leaves_the_other_connections() {
        const LIMIT: Duration = Duration::from_secs(60);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connector = Connector::new(&EtcdOptions::tcp("127.0.0.1", port)).unwrap();
        let cancel = CancelToken::new();
        let mut connection = connector.connect(LIMIT).unwrap();
        let mut accepted = listener.accept().unwrap().0;
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                let _ = accepted.read(&mut [0; 64]);
                cancel.cancel();
            });
            connection.call("/v3/kv/range", &json!({}), LIMIT, Some(&cancel))
        });
        assert!(result.is_err());
        assert!(connection.learned.members.is_serving(0));
    }
}
