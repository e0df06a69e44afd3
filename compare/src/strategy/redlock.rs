//! Redlock: the same `SET NX PX` on five servers that know nothing of each other. A program that
//! gets three of them, and quickly enough, holds the lock; two servers may be dead.
//!
//! Every attempt costs five commands, and a failed one five more to take it back. After a failed
//! attempt a program waits for a random time, so that two that split the votes do not meet again.
//! Nothing renews the lock, and it has no tokens: a late write goes through. Beside it, this library locks on a quorum
//! of the same servers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Connection, RedisResult, Script, cmd};

use super::lock::{Held, Lock, LockRequest};
use super::redis::{DELETE_IF_OWNED, Owners, milliseconds};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::random::random;
use crate::store::redis::client::RedisConfig;

/// The retry delay and jitter of the reference implementations.
const PACE_MS: u64 = 200;
/// For clocks that drift: a hundredth of the ttl, and 2 ms.
const DRIFT: u32 = 100;
const MIN_DRIFT: Duration = Duration::from_millis(2);

pub(super) struct Redlock {
    servers: Arc<[Server]>,
    owners: Owners,
    cancel: Cancellation,
}

impl Redlock {
    /// Connects to the servers that reply.
    pub(super) fn open(configs: &[RedisConfig], cancel: &Cancellation) -> Self {
        Self {
            servers: configs.iter().map(Server::new).collect(),
            owners: Owners::new(),
            cancel: cancel.clone(),
        }
    }

    fn attempt(&self, name: &str, ttl: Duration) -> Option<Held> {
        let (servers, name, owner) = (
            Arc::clone(&self.servers),
            name.to_owned(),
            self.owners.hold(),
        );
        let valid = ttl.saturating_sub(ttl / DRIFT + MIN_DRIFT);
        let started = Instant::now();
        let mut set = cmd("SET");
        set.arg(&name).arg(&owner).arg("NX");
        set.arg("PX").arg(milliseconds(ttl));
        let votes = servers.iter().filter(|server| {
            let vote = server.with(|connection| set.query::<bool>(connection));
            // A server that does not reply has not granted the lock.
            vote.unwrap_or(false)
        });
        let is_majority = votes.count() > servers.len() / 2;
        // On all servers, since one that did not reply may have granted the lock.
        let release = move || {
            let script = Script::new(DELETE_IF_OWNED);
            for server in servers.iter() {
                // What cannot be released expires.
                let _ = server
                    .with(|connection| script.key(&name).arg(&owner).invoke::<i64>(connection));
            }
        };
        if is_majority && started.elapsed() < valid {
            return Some(Held::new(move || {
                release();
                Ok(())
            }));
        }
        release();
        None
    }
}

impl Lock for Redlock {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let pace = || Duration::from_millis(PACE_MS / 2 + random() % PACE_MS);
        self.cancel.retry(request.wait, pace, |_| {
            Ok(self.attempt(name, request.lease.ttl()))
        })
    }
}

/// A server, and the connection to it that all threads share.
struct Server {
    config: RedisConfig,
    connection: Mutex<Option<Connection>>,
}

impl Server {
    fn new(config: &RedisConfig) -> Self {
        Self {
            connection: Mutex::new(config.connect().ok()),
            config: config.clone(),
        }
    }

    /// Runs `command`, on a new connection if the last one broke; `None` if the server did not reply.
    fn with<T>(&self, command: impl FnOnce(&mut Connection) -> RedisResult<T>) -> Option<T> {
        let mut slot = self.connection.lock();
        let mut connection = slot.take().or_else(|| self.config.connect().ok())?;
        let reply = command(&mut connection).ok()?;
        *slot = Some(connection);
        Some(reply)
    }
}
