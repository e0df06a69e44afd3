//! What `consul lock` does. Each hold has a session, which a timer renews every third of its ttl. The key is acquired with
//! the session, and a waiting thread makes a blocking query of the key and then tries again: all waiters wake at once, in
//! no order.
//!
//! A waiting thread occupies a connection. The holder is not notified when the session has ended. Consul's lock-delay,
//! by which a dead holder's lock stays taken for another 15 s, is off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::Usage;
use lockkeeper::backends::consul::{ConsulOptions, PlainClient};
use serde_json::{Value, json};

use super::clients::Clients;
use super::lock::{Held, Lock, LockRequest};
use super::timer;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::consul::{Reply, call, call_within};

/// How often the timer renews the session within a ttl.
const RENEWALS: u32 = 3;
/// Consul ends a session up to two of its ttls after its last renewal.
const TTLS: u32 = 2;

pub(super) struct ConsulLock {
    program: Arc<Program>,
    min_ttl: Duration,
}

/// What the threads of a program share.
struct Program {
    clients: Clients<PlainClient>,
    cancel: Cancellation,
}

impl ConsulLock {
    /// Uses this cluster, where no lock can have a shorter ttl than `min_ttl`.
    pub(super) fn new(options: &ConsulOptions, min_ttl: Duration, cancel: &Cancellation) -> Self {
        let options = options.clone();
        Self {
            program: Arc::new(Program {
                clients: Clients::new(move || Ok(PlainClient::connect(&options)?)),
                cancel: cancel.clone(),
            }),
            min_ttl,
        }
    }
}

impl Lock for ConsulLock {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let program = &self.program;
        let ttl = request.lease.ttl().max(self.min_ttl) / TTLS;
        let session = program.create_session(ttl)?;
        let (kept, path) = (Arc::clone(program), format!("/v1/session/renew/{session}"));
        let timer = timer::start(ttl / RENEWALS, move || {
            let _ = kept.put((&path, &[]), "");
        })?;
        let locked = program.lock(name, &session, request.wait);
        let (program, key) = (Arc::clone(program), format!("/v1/kv/{name}"));
        let is_held = matches!(locked, Ok(true));
        let release = move || {
            drop(timer);
            if is_held {
                let release = format!("release={session}");
                program.put((&key, &[&release]), "")?;
            }
            let path = format!("/v1/session/destroy/{session}");
            program.put((&path, &[]), "").map(drop)
        };
        if is_held {
            return Ok(Some(Held::new(release)));
        }
        release()?;
        self.program.cancel.check()?;
        locked.map(|_| None)
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.program.clients.usage())
    }

    fn min_ttl(&self) -> Duration {
        self.min_ttl
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

impl Program {
    fn put(&self, path: (&str, &[&str]), body: &str) -> Result<Value, Error> {
        let reply = self
            .clients
            .request(|client| call(client, "PUT", path, body))?;
        Ok(reply.body)
    }

    fn create_session(&self, ttl: Duration) -> Result<String, Error> {
        let ttl = format!("{}ms", ttl.as_millis());
        let session = json!({ "TTL": ttl, "Behavior": "delete", "LockDelay": "0s" });
        let reply = self.put(("/v1/session/create", &[]), &session.to_string())?;
        let id = reply.get("ID").and_then(Value::as_str);
        let id = id.ok_or_else(|| Error::failed("Consul opens no session"))?;
        Ok(id.to_owned())
    }

    /// Waits for the lock, and returns whether it was granted.
    fn lock(&self, name: &str, session: &str, wait: Duration) -> Result<bool, Error> {
        let (began, path) = (Instant::now(), format!("/v1/kv/{name}"));
        let acquire = format!("acquire={session}");
        loop {
            if self.put((&path, &[&acquire]), "")? == true {
                return Ok(true);
            }
            let mut index = 0;
            // The first reply comes at once, and the second one when the key has changed.
            while let Some(reply) =
                self.query(&path, index, wait.saturating_sub(began.elapsed()))?
            {
                let holder = reply.body.pointer("/0/Session");
                if holder.is_none() {
                    break;
                }
                index = reply.index;
            }
            self.cancel.check()?;
            if began.elapsed() >= wait {
                return Ok(false);
            }
        }
    }

    fn query(&self, path: &str, index: u64, limit: Duration) -> Result<Option<Reply>, Error> {
        if limit.is_zero() {
            return Ok(None);
        }
        let query = [
            format!("index={index}"),
            format!("wait={}ms", limit.as_millis()),
        ];
        let query = query.each_ref().map(String::as_str);
        let bounds = (limit, Some(self.cancel.token()));
        self.clients
            .wait(|client| call_within(client, "GET", (path, &query), "", bounds))
    }
}
