//! Redlock: the same `SET NX PX` on five servers that know nothing of each other. A program that
//! gets three of them, and quickly enough, holds the lock; two servers may be dead.
//!
//! Every attempt costs five commands, and a failed one five more to take it back. After a failed
//! attempt a program waits for a random time, so that two that split the votes do not meet again.
//! Nothing renews the lock, and it has no tokens: a late write goes through.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::{Connection, RedisResult, Script, cmd};

use super::lock::{Held, Lock, LockRequest, held};
use super::redis::{DELETE_IF_OWNED, Owners, milliseconds, spin};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::redis::client::RedisConfig;

/// The retry delay and jitter of the reference implementations.
const PACE_MS: u64 = 200;
/// For clocks that drift: a hundredth of the ttl, and 2 ms.
const DRIFT: u32 = 100;
const MIN_DRIFT: Duration = Duration::from_millis(2);

/// Most of several servers.
pub(crate) struct Redlock {
    servers: Arc<Servers>,
    owners: Owners,
    cancel: Cancellation,
}

impl Redlock {
    /// Connects to the servers that can be reached.
    pub(crate) fn open<'a>(
        configs: impl IntoIterator<Item = &'a RedisConfig>,
        cancel: &Cancellation,
    ) -> Self {
        Self {
            servers: Arc::new(Servers {
                all: configs.into_iter().map(Server::new).collect(),
                release: Script::new(DELETE_IF_OWNED),
            }),
            owners: Owners::new(),
            cancel: cancel.clone(),
        }
    }
}

impl Lock for Redlock {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error> {
        let pace = || {
            let jitter = RandomState::new().hash_one(0) % PACE_MS;
            Duration::from_millis(PACE_MS / 2 + jitter)
        };
        spin(request, pace, &self.cancel, || {
            let owner = self.owners.hold();
            let ttl = request.lease.ttl();
            let valid = ttl.saturating_sub(ttl / DRIFT + MIN_DRIFT);
            let started = Instant::now();
            let votes = self.servers.acquire(name, &owner, ttl);
            if self.servers.is_majority(votes) && started.elapsed() < valid {
                let (servers, name) = (Arc::clone(&self.servers), name.to_owned());
                return Ok(Some(held(move || {
                    servers.release(&name, &owner);
                    Ok(())
                })));
            }
            self.servers.release(name, &owner);
            Ok(None)
        })
    }
}

struct Servers {
    all: Vec<Server>,
    release: Script,
}

impl Servers {
    /// Returns how many servers granted the lock.
    fn acquire(&self, name: &str, owner: &str, ttl: Duration) -> usize {
        let mut set = cmd("SET");
        set.arg(name).arg(owner).arg("NX");
        set.arg("PX").arg(milliseconds(ttl));
        let votes = self.all.iter().filter(|server| {
            let vote = server.with(|connection| set.query::<bool>(connection));
            // A server that does not reply has not granted the lock.
            vote.unwrap_or(false)
        });
        votes.count()
    }

    fn is_majority(&self, votes: usize) -> bool {
        votes > self.all.len() / 2
    }

    /// Releases on all servers, since one that did not reply may have granted the lock.
    fn release(&self, name: &str, owner: &str) {
        for server in &self.all {
            let mut release = self.release.key(name);
            let release = release.arg(owner);
            // What cannot be released expires.
            let _ = server.with(|connection| release.invoke::<i64>(connection));
        }
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
        let slot = self.connection.lock();
        let mut slot = slot.unwrap_or_else(PoisonError::into_inner);
        let mut connection = slot.take().or_else(|| self.config.connect().ok())?;
        let reply = command(&mut connection).ok()?;
        *slot = Some(connection);
        Some(reply)
    }
}
