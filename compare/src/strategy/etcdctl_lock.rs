//! What `etcdctl lock` does, over the JSON gateway. Each hold has a lease. `/v3/lock/lock` waits in the cluster,
//! first come, first served. Revoking the lease releases the lock. A timer of the hold keeps the lease alive every
//! third of its ttl.
//!
//! A waiting thread occupies a connection. The holder is not notified when the lease has ended. There is no
//! attempt without a wait, so the recipe first checks whether there is a holder.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use lockkeeper::backends::etcd::{EtcdOptions, PlainClient, encoded};
use lockkeeper::{CancelRegistration, Usage};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::clients::Clients;
use super::lock::{Held, Lock, LockRequest};
use super::timer;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::etcd::{all_of, call, grant_lease};

/// How often the timer keeps the lease alive within a ttl.
const RENEWALS: u32 = 3;
/// How long a lock that was free just now is waited for.
const ONE_ATTEMPT: Duration = Duration::from_secs(1);

pub(super) struct EtcdctlLock {
    program: Arc<Program>,
    min_ttl: Duration,
    /// Ends the waits inside the cluster when the comparison is cancelled.
    _wake: CancelRegistration,
}

/// What the threads of a program share.
struct Program {
    clients: Clients<PlainClient>,
    cancel: Cancellation,
    /// The sockets of the threads that wait, by the lease.
    waiting: Mutex<HashMap<String, TcpStream>>,
}

impl EtcdctlLock {
    /// Uses this cluster, where no lease can be shorter than `min_ttl`.
    pub(super) fn new(options: &EtcdOptions, min_ttl: Duration, cancel: &Cancellation) -> Self {
        let options = options.clone();
        let program = Arc::new(Program {
            clients: Clients::new(move || Ok(PlainClient::connect(&options)?)),
            cancel: cancel.clone(),
            waiting: Mutex::default(),
        });
        let waiting = Arc::clone(&program);
        Self {
            program,
            min_ttl,
            _wake: cancel.token().on_cancel(move || {
                for socket in waiting.waiting.lock().values() {
                    // It may have ended by itself.
                    let _ = socket.shutdown(Shutdown::Both);
                }
            }),
        }
    }
}

impl Lock for EtcdctlLock {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let program = &self.program;
        if request.wait.is_zero() && program.is_held(name)? {
            return Ok(None);
        }
        let ttl = request.lease.ttl().max(self.min_ttl);
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let lease = program
            .clients
            .request(|client| grant_lease(client, seconds))?;
        let (kept, id) = (Arc::clone(program), lease.clone());
        let timer = timer::start(ttl / RENEWALS, move || {
            let _ = kept.send("/v3/lease/keepalive", &json!({ "ID": id }));
        })?;
        let (program, locked) = (
            Arc::clone(program),
            program.lock(name, &lease, request.wait),
        );
        let release = move || {
            drop(timer);
            // A lease that has ended is an error, and its key is gone with it.
            let _ = program.send("/v3/lease/revoke", &json!({ "ID": lease }));
            Ok(())
        };
        if let Ok(true) = locked {
            return Ok(Some(Held::new(release)));
        }
        // The key may be in the queue.
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
    fn send(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.clients.request(|client| call(client, path, body))
    }

    /// Returns whether there is a holder or a waiter.
    fn is_held(&self, name: &str) -> Result<bool, Error> {
        let reply = self.send("/v3/kv/range", &all_of(&format!("{name}/")))?;
        Ok(reply.get("kvs").is_some())
    }

    /// Waits for the lock, and returns whether it was granted.
    fn lock(&self, name: &str, lease: &Value, wait: Duration) -> Result<bool, Error> {
        let id = lease.to_string();
        let granted = self.clients.wait(|client| {
            let socket = client.socket().try_clone();
            let socket = socket.map_err(|error| {
                Error::failed(format!(
                    "a socket cannot be cloned: {error}; use fewer threads"
                ))
            })?;
            self.waiting.lock().insert(id.clone(), socket);
            // It may have been cancelled before the socket was there to be shut down.
            self.cancel.check()?;
            let body = json!({ "name": encoded(name), "lease": lease });
            let reply = client.call("/v3/lock/lock", &body, wait.max(ONE_ATTEMPT));
            self.waiting.lock().remove(&id);
            Ok(reply?)
        });
        Ok(granted?.is_some())
    }
}
