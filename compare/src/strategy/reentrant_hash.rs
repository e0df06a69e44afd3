//! A hash with one field, the owner, whose value counts how often it was taken: the reentrant lock
//! of the inventory write-up. The owner is a thread, so that a service that holds the lock can call
//! another that takes it again; it is free when the count is back at zero.
//!
//! While it is held, a watchdog renews it every third of its ttl, so that it does not run out as
//! long as its holder lives. There is no fixed lease. Who waits tries again every 50 ms.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use lockkeeper::CancelToken;
use redis::Script;

use super::lock::{Held, Lock, Terms};
use super::redis::{Owners, Shared, milliseconds, spin};
use crate::error::Failure;
use crate::store::redis::Door;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(50);
/// The watchdog renews so often within a ttl.
const RENEWALS: u32 = 3;

const TAKE: &str = "
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
return 0";

const FREE: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if redis.call('HINCRBY', KEYS[1], ARGV[1], -1) == 0 then redis.call('DEL', KEYS[1]) end
return 1";

const RENEW: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])";

/// A hash of owner and count.
#[derive(Debug)]
pub(crate) struct ReentrantHash {
    shared: Arc<Shared>,
    scripts: Arc<Scripts>,
    owners: Owners,
    stop: CancelToken,
}

#[derive(Debug)]
struct Scripts {
    take: Script,
    free: Script,
    renew: Script,
}

impl ReentrantHash {
    /// Connects.
    pub(crate) fn open(door: &Door, stop: &CancelToken) -> Result<Self, Failure> {
        Ok(Self {
            shared: Arc::new(Shared::open(door)?),
            scripts: Arc::new(Scripts {
                take: Script::new(TAKE),
                free: Script::new(FREE),
                renew: Script::new(RENEW),
            }),
            owners: Owners::new(),
            stop: stop.clone(),
        })
    }
}

impl Lock for ReentrantHash {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let (owner, ttl) = (self.owners.thread(), terms.lease.ttl());
        let mut take = self.scripts.take.key(name);
        let take = take.arg(&owner).arg(milliseconds(ttl));
        spin(
            terms,
            || PACE,
            &self.stop,
            || {
                if !self.shared.run::<bool>(take)? {
                    return Ok(None);
                }
                let mut hold = Hold {
                    shared: Arc::clone(&self.shared),
                    scripts: Arc::clone(&self.scripts),
                    name: name.to_owned(),
                    owner: owner.clone(),
                    watchdog: None,
                };
                hold.watchdog = Some(hold.watch(ttl)?);
                Ok(Some(Box::new(hold) as Box<dyn Held>))
            },
        )
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}

struct Hold {
    shared: Arc<Shared>,
    scripts: Arc<Scripts>,
    name: String,
    owner: String,
    /// Its end calls the watchdog off; `None` once it is released.
    watchdog: Option<Sender<()>>,
}

impl Hold {
    /// A timer of its own for every hold.
    fn watch(&self, ttl: Duration) -> Result<Sender<()>, Failure> {
        let (held, until) = mpsc::channel::<()>();
        let (shared, scripts) = (Arc::clone(&self.shared), Arc::clone(&self.scripts));
        let (name, owner) = (self.name.clone(), self.owner.clone());
        let watch = move || {
            while until.recv_timeout(ttl / RENEWALS) == Err(RecvTimeoutError::Timeout) {
                let mut renew = scripts.renew.key(&name);
                let renew = renew.arg(&owner).arg(milliseconds(ttl));
                // What the timer finds, nobody is told.
                let _ = shared.run::<bool>(renew);
            }
        };
        let thread = thread::Builder::new().name("watchdog".to_owned());
        thread
            .spawn(watch)
            .map_err(|error| Failure::Failed(format!("no thread for a watchdog: {error}")))?;
        Ok(held)
    }

    fn free(&mut self) -> Result<(), Failure> {
        if self.watchdog.take().is_some() {
            let mut free = self.scripts.free.key(&self.name);
            self.shared.run::<bool>(free.arg(&self.owner))?;
        }
        Ok(())
    }
}

impl Held for Hold {
    fn release(mut self: Box<Self>) -> Result<(), Failure> {
        self.free()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let _ = self.free();
    }
}
