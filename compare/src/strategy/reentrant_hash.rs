//! A hash with one field, the owner, whose value counts how often it was acquired: the reentrant
//! lock of the inventory write-up. The owner is a thread, so a service that holds the lock can call
//! another one that acquires it again. The lock is free when the count is back at zero.
//!
//! A watchdog renews the lock every third of its ttl, so it does not expire while its holder lives.
//! There is no fixed lease. A waiter tries again every 50 ms.

use std::convert::Infallible;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use redis::Script;

use super::lock::{Held, Lock, LockRequest, held};
use super::redis::{Owners, SharedConnection, milliseconds, spin};
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::redis::client::RedisConfig;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(50);
/// How often the watchdog renews within a ttl.
const RENEWALS: u32 = 3;

const ACQUIRE: &str = "
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
return 0";

const RELEASE: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then redis.call('DEL', KEYS[1]) end
return 1";

const RENEW: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// A hash of owner and count.
pub(crate) struct ReentrantHash {
    server: Arc<Server>,
    owners: Owners,
    cancel: Cancellation,
}

struct Server {
    connection: SharedConnection,
    acquire: Script,
    release: Script,
    renew: Script,
}

impl ReentrantHash {
    /// Connects.
    pub(crate) fn open(config: &RedisConfig, cancel: &Cancellation) -> Result<Self, Error> {
        Ok(Self {
            server: Arc::new(Server {
                connection: SharedConnection::open(config)?,
                acquire: Script::new(ACQUIRE),
                release: Script::new(RELEASE),
                renew: Script::new(RENEW),
            }),
            owners: Owners::new(),
            cancel: cancel.clone(),
        })
    }
}

impl Lock for ReentrantHash {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error> {
        let (owner, ttl) = (self.owners.thread(), request.lease.ttl());
        let mut acquire = self.server.acquire.key(name);
        let acquire = acquire.arg(&owner).arg(milliseconds(ttl));
        let attempt = || {
            if !self.server.connection.run::<bool>(acquire)? {
                return Ok(None);
            }
            let (server, name, owner) = (Arc::clone(&self.server), name.to_owned(), owner.clone());
            let watchdog = watch(Arc::clone(&server), name.clone(), owner.clone(), ttl)?;
            Ok(Some(held(move || {
                drop(watchdog);
                let mut release = server.release.key(name);
                server.connection.run::<bool>(release.arg(owner))?;
                Ok(())
            })))
        };
        spin(request, || PACE, &self.cancel, attempt)
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

/// Starts the timer of a hold, as every hold has one of its own. It ends when the sender is dropped.
fn watch(
    server: Arc<Server>,
    name: String,
    owner: String,
    ttl: Duration,
) -> Result<Sender<Infallible>, Error> {
    let (held, released) = bounded(0);
    let renew = move || {
        while released.recv_timeout(ttl / RENEWALS) == Err(RecvTimeoutError::Timeout) {
            let mut renew = server.renew.key(&name);
            let renew = renew.arg(&owner).arg(milliseconds(ttl));
            // The recipe does not tell the holder what the timer finds.
            let _ = server.connection.run::<bool>(renew);
        }
    };
    let thread = thread::Builder::new().name("watchdog".to_owned());
    thread
        .spawn(renew)
        .map_err(|error| Error::failed(format!("cannot start a watchdog: {error}")))?;
    Ok(held)
}
