//! A hash with one field, the owner, and as its value how often it was acquired: the reentrant
//! lock of the inventory write-up. The owner is a thread, so a service that holds the lock can call
//! another one that acquires it again. The lock is free when the count is back at zero.
//!
//! A watchdog renews the lock every third of its ttl, so it does not expire while its holder lives.
//! There is no fixed lease. A waiter tries again every 50 ms.

use std::time::Duration;

use super::lock::{Held, Lock, LockRequest};
use super::redis::{Client, milliseconds};
use super::timer;
use crate::error::Error;

/// Between two attempts, as in the write-up.
const PACE: Duration = Duration::from_millis(50);
/// How often the watchdog renews within a ttl.
const RENEWALS: u64 = 3;

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

pub(super) struct ReentrantHash(pub(super) Client);

impl Lock for ReentrantHash {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let ReentrantHash(client) = self;
        let (owner, ttl) = (client.owners.thread(), milliseconds(request.lease.ttl()));
        let interval = Duration::from_millis(ttl / RENEWALS);
        client.cancel.retry(
            request.wait,
            || PACE,
            |_| {
                if !client.run::<bool>(ACQUIRE, name, (&owner, ttl))? {
                    return Ok(None);
                }
                let (client, name, owner) = (client.clone(), name.to_owned(), owner.clone());
                let renewed = (client.clone(), name.clone(), owner.clone());
                let watchdog = timer::start(interval, move || {
                    let (client, name, owner) = &renewed;
                    let _ = client.run::<bool>(RENEW, name, (owner, ttl));
                })?;
                Ok(Some(Held::new(move || {
                    drop(watchdog);
                    client.run::<bool>(RELEASE, name, owner)?;
                    Ok(())
                })))
            },
        )
    }

    fn has_fixed_lease(&self) -> bool {
        false
    }
}
