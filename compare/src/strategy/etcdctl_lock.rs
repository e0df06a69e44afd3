//! What `etcdctl lock` does, over the JSON gateway. Each hold has a lease. `/v3/lock/lock` waits in the cluster,
//! first come, first served. Revoking the lease releases the lock. A timer of the hold keeps the lease alive every
//! third of its ttl.
//!
//! A waiting thread occupies a connection. The holder is not notified when the lease has ended. There is no
//! attempt without a wait, so the recipe first checks whether there is a holder.

use std::collections::HashMap;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::backends::etcd::{PlainClient, encoded};
use lockkeeper::{CancelRegistration, Usage};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::lock::{Held, Lock, LockRequest};
use super::timer;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::etcd::{EtcdConfig, all_of, call, grant_lease};

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
    config: EtcdConfig,
    cancel: Cancellation,
    /// Connections that no thread uses.
    idle: Mutex<Vec<PlainClient>>,
    /// The sockets of the threads that wait, by the number of the request.
    waiting: Mutex<HashMap<u64, TcpStream>>,
    open: AtomicU32,
    sent: AtomicU64,
}

impl EtcdctlLock {
    /// Uses this cluster, where no lease can be shorter than `min_ttl`.
    pub(super) fn new(config: &EtcdConfig, min_ttl: Duration, cancel: &Cancellation) -> Self {
        let program = Arc::new(Program {
            config: config.clone(),
            cancel: cancel.clone(),
            idle: Mutex::default(),
            waiting: Mutex::default(),
            open: AtomicU32::new(0),
            sent: AtomicU64::new(0),
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
        let lease = program.with_client(|client| grant_lease(client, seconds))?;
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
        Some(Usage {
            commands: self.program.sent.load(Ordering::Relaxed),
            connections: self.program.open.load(Ordering::Relaxed),
        })
    }

    fn min_ttl(&self) -> Duration {
        self.min_ttl
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

impl Program {
    /// Takes a connection that no thread uses, or opens one.
    fn client(&self) -> Result<PlainClient, Error> {
        if let Some(client) = self.idle.lock().pop() {
            return Ok(client);
        }
        let client = self.config.connect()?;
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(client)
    }

    fn with_client<T>(
        &self,
        work: impl FnOnce(&mut PlainClient) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut client = self.client()?;
        self.sent.fetch_add(1, Ordering::Relaxed);
        let result = work(&mut client)?;
        self.idle.lock().push(client);
        Ok(result)
    }

    fn send(&self, path: &str, body: &Value) -> Result<Value, Error> {
        self.with_client(|client| call(client, path, body))
    }

    /// Returns whether there is a holder or a waiter.
    fn is_held(&self, name: &str) -> Result<bool, Error> {
        let reply = self.send("/v3/kv/range", &all_of(&format!("{name}/")))?;
        Ok(reply.get("kvs").is_some())
    }

    /// Waits for the lock, and returns whether it was granted.
    fn lock(&self, name: &str, lease: &Value, wait: Duration) -> Result<bool, Error> {
        let mut client = self.client()?;
        let socket = client.socket().try_clone();
        let socket = socket.map_err(|error| {
            Error::failed(format!(
                "a socket cannot be cloned: {error}; use fewer threads"
            ))
        })?;
        let number = self.sent.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().insert(number, socket);
        // It may have been cancelled before the socket was there to be shut down.
        self.cancel.check()?;
        let body = json!({ "name": encoded(name), "lease": lease });
        let reply = client.call("/v3/lock/lock", &body, wait.max(ONE_ATTEMPT));
        self.waiting.lock().remove(&number);
        match reply {
            Ok(Some(_)) => {
                self.idle.lock().push(client);
                Ok(true)
            }
            // A reply may still come on the connection.
            Ok(None) => {
                self.open.fetch_sub(1, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
