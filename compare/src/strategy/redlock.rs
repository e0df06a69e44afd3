//! Redlock: the same `SET NX PX` on five servers that know nothing of each other. Who has three of
//! them, and quickly enough, holds the lock; two servers may be dead.
//!
//! Every attempt costs five commands, and a failed one five more to take it back. Who does not get
//! it tries again after a random time, so that two who have split the votes do not meet again.
//! Nothing renews it, and it has no tokens: a late write goes through.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::CancelToken;
use redis::{Connection, RedisResult, Script, cmd};

use super::lock::{Held, Lock, Terms};
use super::redis::{DELETE_IF_MINE, Owners, milliseconds, spin};
use crate::error::Failure;
use crate::store::redis::Door;

/// The retry delay and jitter of the reference implementations.
const PACE_MS: u64 = 200;
/// For clocks that do not run alike: a hundredth of the ttl, and 2 ms.
const DRIFT: u32 = 100;
const DRIFT_AT_LEAST: Duration = Duration::from_millis(2);

/// Most of several servers.
#[derive(Debug)]
pub(crate) struct Redlock {
    servers: Arc<Servers>,
    owners: Owners,
    stop: CancelToken,
}

impl Redlock {
    /// Connects to those that are there.
    pub(crate) fn open(doors: &[Door], stop: &CancelToken) -> Self {
        let servers = doors.iter().map(Server::new).collect();
        Self {
            servers: Arc::new(Servers {
                all: servers,
                release: Script::new(DELETE_IF_MINE),
            }),
            owners: Owners::new(),
            stop: stop.clone(),
        }
    }
}

impl Lock for Redlock {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let pace = || {
            let jitter = RandomState::new().hash_one(0) % PACE_MS;
            Duration::from_millis(PACE_MS / 2 + jitter)
        };
        spin(terms, pace, &self.stop, || {
            let owner = self.owners.hold();
            let ttl = terms.lease.ttl();
            let valid = ttl.saturating_sub(ttl / DRIFT + DRIFT_AT_LEAST);
            let begun = Instant::now();
            let votes = self.servers.ask_for(name, &owner, ttl);
            if self.servers.is_majority(votes) && begun.elapsed() < valid {
                return Ok(Some(Box::new(Hold {
                    servers: Arc::clone(&self.servers),
                    name: name.to_owned(),
                    owner: Some(owner),
                }) as Box<dyn Held>));
            }
            self.servers.free(name, &owner);
            Ok(None)
        })
    }
}

#[derive(Debug)]
struct Servers {
    all: Vec<Server>,
    release: Script,
}

impl Servers {
    /// How many granted it.
    fn ask_for(&self, name: &str, owner: &str, ttl: Duration) -> usize {
        let mut set = cmd("SET");
        set.arg(name).arg(owner).arg("NX");
        set.arg("PX").arg(milliseconds(ttl));
        let votes = self.all.iter().map(|server| {
            let vote = server.with(|connection| set.query::<bool>(connection));
            // A server that does not answer has not granted it.
            usize::from(vote.unwrap_or(false))
        });
        votes.sum()
    }

    fn is_majority(&self, votes: usize) -> bool {
        votes > self.all.len() / 2
    }

    /// On all of them: one that seemed not to answer may have granted it.
    fn free(&self, name: &str, owner: &str) {
        for server in &self.all {
            let mut release = self.release.key(name);
            let release = release.arg(owner);
            // What cannot be freed runs out.
            let _ = server.with(|connection| release.invoke::<i64>(connection));
        }
    }
}

/// A server, and the connection to it that all threads share.
struct Server {
    door: Door,
    connection: Mutex<Option<Connection>>,
}

impl Server {
    fn new(door: &Door) -> Self {
        Self {
            connection: Mutex::new(door.connect().ok()),
            door: door.clone(),
        }
    }

    /// `None`: it does not answer.
    fn with<T>(&self, ask: impl FnOnce(&mut Connection) -> RedisResult<T>) -> Option<T> {
        let mut place = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            *place = self.door.connect().ok();
        }
        let answer = ask(place.as_mut()?);
        if answer.is_err() {
            *place = None;
        }
        answer.ok()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").field(&self.door).finish()
    }
}

struct Hold {
    servers: Arc<Servers>,
    name: String,
    /// `None` once it is released.
    owner: Option<String>,
}

impl Held for Hold {
    fn release(self: Box<Self>) -> Result<(), Failure> {
        // Dropping it does that.
        Ok(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            self.servers.free(&self.name, &owner);
        }
    }
}
