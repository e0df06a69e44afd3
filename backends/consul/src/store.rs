//! The store of a register: entries, sessions and waits.

mod writes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_core::{
    CancelToken, Capabilities, Capability, Clock, Error, ErrorKind, Finding, KeyValue as _,
    StoreInfo, Usage,
};
use lockkeeper_register::{Call, Entry, Key, Read, RegisterStore, SessionId, Version, View, Write};
use lockkeeper_remote::{Failure, HttpReply, nothing_granted, senseless, unavailable};
use serde_json::{Value, json};

use crate::BACKEND;
use crate::connection::Request;
use crate::connection::client::Client;
use crate::connection::failure::{INVALID_TTL, MISSING_NODE};
use crate::operate::examine;
use crate::options::ConsulOptions;
use crate::wire::{Keys, Pairs, Txn, VERBS, pairs};

/// The node of all sessions. No agent runs on it, so that no agent's end deregisters it with its sessions.
const NODE: &str = "lockkeeper";
/// The shortest ttl of a session, unless the server tells another one.
const MIN_SESSION: Duration = Duration::from_secs(10);
/// The longest ttl of a session.
const MAX_SESSION: Duration = Duration::from_secs(86_400);
/// A session ends this many ttls after its last renewal: exactly then if the leader stays, and later if it changes.
/// Consul promises no more than one.
const SESSION_TTLS: u32 = 2;

/// Entries in the key-value store of one Consul cluster, for all programs that connect to it.
///
/// The servers decide by majority, so the loss of a server neither loses a lock nor grants it twice. If an agent is down
/// or knows no leader, that is an outage for the requests that it had. The next requests go to another agent.
///
/// # Limits
/// - The shortest ttl is 20 s: twice the shortest session, which the server's `session_ttl_min` can lower. The longest is
///   48 h.
/// - Consul promises a session for half of that time, so a guard is lost half of the ttl after its last renewal.
/// - A new leader counts the ttl of every session again. So after an election, the name of a dead holder is free that
///   much later.
/// - A waiting caller uses a connection. While callers wait for `pool_size` - 1 names, those of further names poll.
/// - A thread of the provider waits on another connection for names that an operator takes away.
/// - Do not use it on both sides of a fork; open it after forking.
pub struct ConsulStore {
    client: Client,
    options: ConsulOptions,
    namespace: String,
    keys: Keys,
    min_session: Duration,
}

impl fmt::Debug for ConsulStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsulStore")
            .field("options", &self.options)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl ConsulStore {
    /// Connects, and tries every request that a lock needs, within the connect timeout. Namespaces are separate.
    ///
    /// # Errors
    /// - [`ErrorKind::Unavailable`] if no agent can be reached, or there is no leader.
    /// - [`ErrorKind::PermissionDenied`] for an unknown token, a missing right, or a certificate that is not trusted.
    /// - [`ErrorKind::Incompatible`] if an agent is not Consul or does not speak TLS, or if the agents are of two clusters.
    /// - [`ErrorKind::InvalidValue`] for options out of bounds.
    pub fn open(
        options: &ConsulOptions,
        namespace: &str,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let deadline = clock.now() + options.remote.connect_timeout;
        let store = Client::new(options, clock).and_then(|client| {
            let mut store = Self {
                client,
                options: options.clone(),
                namespace: namespace.to_owned(),
                keys: Keys::new(namespace),
                min_session: MIN_SESSION,
            };
            store.try_requests(Call::until(deadline))?;
            Ok(store)
        });
        store.map_err(|error| error.with_backend(BACKEND))
    }

    fn try_requests(&mut self, call: Call<'_>) -> Result<(), Error> {
        if self.leader(call)?.is_empty() {
            let text = "the agent knows no leader; are most of the servers up and connected?";
            return Err(unavailable(text));
        }
        self.min_session = self.least_session(call)?;
        let session = self.open_session(self.min_session * SESSION_TTLS, call)?;
        self.end_sessions(&[&session], call)
    }

    /// Returns the address of the leader, which is empty if there is none.
    pub(crate) fn leader(&self, call: Call<'_>) -> Result<String, Error> {
        let reply = self.get("/v1/status/leader", call)?;
        serde_json::from_slice(&reply.body).map_err(|_| {
            let text = "what answers is no agent of Consul; is the address that of its HTTP port?";
            Error::new(ErrorKind::Incompatible, text)
        })
    }

    /// Asks for a session that is too short, which no server opens, and reads the shortest one in the error.
    pub(crate) fn least_session(&self, call: Call<'_>) -> Result<Duration, Error> {
        let reply = self.create_session(Duration::from_nanos(1), call)?;
        let said = String::from_utf8_lossy(&reply.body);
        let least = said.split_once('[').and_then(|(_, it)| it.split_once('='));
        // Go writes durations as config files do: 1m30s.
        let least = least.and_then(|(least, _)| Duration::from_text(least));
        let least = least.filter(|it| said.contains(INVALID_TTL) && *it <= MAX_SESSION);
        Ok(least.unwrap_or(MIN_SESSION))
    }

    /// Makes a request that cannot have granted anything.
    fn ask(&self, request: Request<'_>, call: Call<'_>) -> Result<HttpReply, Error> {
        self.client.request(request, call).map_err(nothing_granted)
    }

    pub(crate) fn get(&self, path: &str, call: Call<'_>) -> Result<HttpReply, Error> {
        self.ask(Request::get(&self.client.path(path, &[])), call)
    }

    fn put(&self, path: &str, body: &str, call: Call<'_>) -> Result<HttpReply, Error> {
        self.ask(Request::put(&self.client.path(path, &[]), body), call)
    }

    /// Asks whether the token may write keys, by a write whose condition cannot hold.
    pub(crate) fn try_write(&self, call: Call<'_>) -> Result<(), Error> {
        let mut txn = Txn::default();
        txn.write(&self.keys.session("none"), Version::MAX, "");
        self.put("/v1/txn", &txn.body(), call).map(drop)
    }

    fn create_session(&self, ttl: Duration, call: Call<'_>) -> Result<HttpReply, Error> {
        let session = json!({
            "Name": "lockkeeper",
            "Node": NODE,
            "TTL": format!("{}ns", ttl.as_nanos()),
            "NodeChecks": [],
            "LockDelay": "0s",
            "Behavior": "delete",
        });
        self.put("/v1/session/create", &session.to_string(), call)
    }

    /// Reads keys in as few transactions as possible.
    fn read_keys(&self, keys: &[&String], call: Call<'_>) -> Result<Pairs, Failure> {
        let path = self.client.path("/v1/txn", &["consistent"]);
        let mut found = Pairs::new();
        for keys in keys.chunks(VERBS) {
            let mut txn = Txn::default();
            keys.iter().for_each(|key| txn.read(key));
            let reply = self
                .client
                .request(Request::put(&path, &txn.body()), call)?;
            let reply = json_of(&reply).map_err(Failure::Refused)?;
            // What is missing counts as absent, so no other reply may be taken for this one.
            let results = reply.get("Results").filter(|it| it.is_array());
            let results = results.ok_or_else(|| Failure::Refused(senseless()))?;
            found.append(&mut pairs(results));
        }
        Ok(found)
    }

    fn keep_and_read(&self, read: &Read<'_>, call: Call<'_>) -> Result<View, Failure> {
        for (id, _) in read.keep {
            let path = self.client.path(&format!("/v1/session/renew/{id}"), &[]);
            // The status of an ended one is 404, and its key is absent.
            self.client.request(Request::put(&path, ""), call)?;
        }
        let sessions = read.keep.iter().map(|(id, _)| id).chain(read.check);
        let of_session = |id: &&str| (self.keys.session(id), (*id).to_owned());
        let sessions: Vec<_> = sessions.map(of_session).collect();
        let keys: Vec<_> = read.keys.iter().map(|key| self.keys.entry(key)).collect();
        let of_sessions = sessions.iter().map(|(key, _)| key);
        let all: Vec<_> = keys.iter().chain(of_sessions).collect();
        let mut found = self.read_keys(&all, call)?;
        let ended = sessions
            .into_iter()
            .filter(|(key, _)| !found.contains_key(key));
        Ok(View {
            ended: ended.map(|(_, id)| id).collect(),
            entries: keys.iter().map(|key| found.remove(key)).collect(),
        })
    }
}

/// Reads the body of a reply.
fn json_of(reply: &HttpReply) -> Result<Value, Error> {
    serde_json::from_slice(&reply.body).map_err(|_| senseless())
}

impl StoreInfo for ConsulStore {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let datacenter = self.options.datacenter.as_deref();
        let mut query = vec![("namespace", self.namespace.as_str())];
        query.extend(datacenter.map(|it| ("datacenter", it)));
        self.options.remote.location(BACKEND, None, &query)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::CrossHost)
            .with_min_ttl(self.min_session * SESSION_TTLS)
            .with_least_margin(SESSION_TTLS)
            .with_batch(VERBS / 2)
            .with_renewals(VERBS - 2)
            .with_attempt_limit(self.options.remote.attempt_time())
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.client.connector.learned.counts.usage())
    }
}

impl RegisterStore for ConsulStore {
    fn read(&self, read: &Read<'_>, call: Call<'_>) -> Result<View, Error> {
        let view = self.keep_and_read(read, call);
        view.map_err(Failure::into_error)
    }

    fn write(&self, writes: &[Write<'_>], call: Call<'_>) -> Result<Vec<Option<Version>>, Error> {
        let mut versions = Vec::with_capacity(writes.len());
        while let Some(rest) = writes.get(versions.len()..).filter(|it| !it.is_empty()) {
            match self.write_some(rest, call) {
                Ok(written) => versions.extend(written),
                Err(failure) if versions.is_empty() => return Err(failure.into_error()),
                // The first ones are written.
                Err(failure) => return Err(failure.into_error().with_kind(ErrorKind::Unknown)),
            }
        }
        Ok(versions)
    }

    fn open_session(&self, ttl: Duration, call: Call<'_>) -> Result<SessionId, Error> {
        let own = ttl / SESSION_TTLS;
        if own > MAX_SESSION {
            let text = format!(
                "a session of Consul lasts {MAX_SESSION:?} at most, so a ttl has to be {:?} or less",
                MAX_SESSION * SESSION_TTLS
            );
            return Err(Error::new(ErrorKind::InvalidTtl, text));
        }
        let mut reply = self.create_session(own, call)?;
        if reply.status == 500 && String::from_utf8_lossy(&reply.body).contains(MISSING_NODE) {
            let node = json!({ "Node": NODE, "Address": "lockkeeper.invalid" });
            self.put("/v1/catalog/register", &node.to_string(), call)?;
            reply = self.create_session(own, call)?;
        }
        if reply.status != 200 {
            let said = String::from_utf8_lossy(&reply.body);
            let text = format!(
                "Consul opens no session; the server's configuration may have changed (Consul says: {said})"
            );
            return Err(unavailable(&text));
        }
        let reply = json_of(&reply)?;
        let id = reply.get("ID").and_then(Value::as_str);
        let id = id.ok_or_else(senseless)?;
        let mut txn = Txn::default();
        txn.lock(&self.keys.session(id), id);
        match self.put("/v1/txn", &txn.body(), call)?.status {
            200 => Ok(id.to_owned()),
            _ => Err(unavailable("Consul has ended a new session; try again")),
        }
    }

    fn end_sessions(&self, sessions: &[&str], call: Call<'_>) -> Result<(), Error> {
        sessions.iter().try_for_each(|id| {
            self.put(&format!("/v1/session/destroy/{id}"), "", call)?;
            Ok(())
        })
    }

    fn wait(&self, key: &Key, seen: Option<Version>, call: Call<'_>) -> Option<Result<(), Error>> {
        let is_of_namespace = key.as_str().starts_with("namespace/");
        let path = format!("/v1/kv/{}", self.keys.entry(key));
        let index = match seen {
            Some(version) => version,
            // The wait for an absent entry goes on from the index of the reply that tells so.
            None => match self.get(&path, call) {
                Err(error) => return Some(Err(error)),
                Ok(reply) if reply.status != 404 => return Some(Ok(())),
                Ok(reply) => reply.header("X-Consul-Index")?.parse().ok()?,
            },
        };
        // The server adds up to a sixteenth, and its reply takes time, too.
        let wait = self.client.left(call.deadline) / 9 * 8;
        let query = [
            format!("index={index}"),
            format!("wait={}ms", wait.as_millis().max(1)),
        ];
        let path = self
            .client
            .path(&path, &query.each_ref().map(String::as_str));
        let waited = self
            .client
            .wait(Request::get(&path), is_of_namespace, call)?;
        let is_over = self.client.left(call.deadline).is_zero()
            || call.cancel.is_some_and(CancelToken::is_cancelled);
        Some(match waited {
            Err(failure) if !is_over => Err(nothing_granted(failure)),
            _ => Ok(()),
        })
    }

    fn list(&self, call: Call<'_>) -> Result<Vec<Entry>, Error> {
        let path = format!("/v1/kv/{}", self.keys.prefix());
        let path = self.client.path(&path, &["keys", "consistent"]);
        let reply = self.ask(Request::get(&path), call)?;
        if reply.status == 404 {
            return Ok(Vec::new());
        }
        let keys = serde_json::from_slice::<Vec<String>>(&reply.body);
        let keys = keys.map_err(|_| senseless())?;
        let keys: Vec<_> = keys.iter().filter(|it| self.keys.is_of_entry(it)).collect();
        // All values in one reply could exceed its bound.
        let found = self.read_keys(&keys, call).map_err(nothing_granted)?;
        Ok(found.into_values().collect())
    }

    fn examine(&self, call: Call<'_>) -> Result<Vec<Finding>, Error> {
        examine(self, call)
    }
}
