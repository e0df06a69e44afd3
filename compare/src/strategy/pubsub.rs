//! Redisson's lock: a script acquires it, or returns how long the holder's lease still lasts. A
//! waiter listens on the lock's channel until a release is published there, but no longer than that
//! lease, nor than the rest of its wait.
//!
//! That takes far fewer commands than asking all the time. But every waiter listens: each release
//! wakes all of them, and all but one try in vain. With a fixed lease, as in the write-ups, nothing
//! renews the lock. A late holder finds out when it unlocks ("attempt to unlock lock, not locked by
//! current thread"), after its late write went through.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use redis::{Connection, RedisResult, Script, cmd};

use super::lock::{Held, Lock, LockRequest, held};
use super::redis::{Owners, SharedConnection, milliseconds};
use crate::cancel::{Cancellation, Latch};
use crate::error::Error;
use crate::store::redis::client::RedisConfig;

/// Acquires the lock, or counts up, and returns nil; else returns the rest of the holder's lease.
const ACQUIRE: &str = "
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])";

/// Counts down; at zero it deletes the lock and publishes the release.
const RELEASE: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end
if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], 'free')
return 1";

/// The message that ends a channel's listener.
const GOODBYE: &str = "goodbye";

/// A lock script, and a channel for each lock.
pub(crate) struct PubSub {
    connection: Arc<SharedConnection>,
    config: RedisConfig,
    acquire: Script,
    release: Arc<Script>,
    owners: Owners,
    channels: Mutex<HashMap<String, Arc<Channel>>>,
    cancel: Cancellation,
}

impl PubSub {
    /// Connects.
    pub(crate) fn open(config: &RedisConfig, cancel: &Cancellation) -> Result<Self, Error> {
        Ok(Self {
            connection: Arc::new(SharedConnection::open(config)?),
            config: config.clone(),
            acquire: Script::new(ACQUIRE),
            release: Arc::new(Script::new(RELEASE)),
            owners: Owners::new(),
            channels: Mutex::default(),
            cancel: cancel.clone(),
        })
    }

    /// Returns the channel of the lock; the first waiter of the program subscribes to it.
    fn channel(&self, name: &str) -> Result<Arc<Channel>, Error> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(name) {
            return Ok(Arc::clone(channel));
        }
        let connection = self.config.connect()?;
        // A listener waits for as long as nothing is published.
        connection.set_read_timeout(None)?;
        let channel = Arc::new(Channel::new());
        let (subscribed, is_subscribed) = bounded(1);
        let (listening, topic) = (Arc::clone(&channel), topic(name));
        thread::Builder::new()
            .name("listener".to_owned())
            .spawn(move || listening.listen(connection, topic, &subscribed))
            .map_err(|error| Error::failed(format!("cannot start a listener: {error}")))?;
        // Only what is published after this is received.
        let ended = |_| Error::failed("the listener ended before it subscribed");
        is_subscribed.recv().map_err(ended)??;
        channels.insert(name.to_owned(), Arc::clone(&channel));
        Ok(channel)
    }

    /// Returns the rest of the holder's lease; `None` if this attempt acquired the lock.
    fn attempt(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Duration>, Error> {
        let mut acquire = self.acquire.key(name);
        let acquire = acquire.arg(milliseconds(ttl)).arg(owner);
        let left: Option<i64> = self.connection.run(acquire)?;
        Ok(left.map(|left| Duration::from_millis(u64::try_from(left).unwrap_or(0))))
    }

    fn held(&self, name: &str, owner: String, ttl: Duration) -> Box<dyn Held> {
        let (connection, release) = (Arc::clone(&self.connection), Arc::clone(&self.release));
        let name = name.to_owned();
        held(move || {
            let mut release = release.key(&name);
            let release = release.key(topic(&name));
            // Nil is Redisson's IllegalMonitorStateException: the lock was lost, too late to know.
            connection.run::<Option<i64>>(release.arg(milliseconds(ttl)).arg(owner))?;
            Ok(())
        })
    }
}

impl Lock for PubSub {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Box<dyn Held>>, Error> {
        let started = Instant::now();
        let (owner, ttl) = (self.owners.thread(), request.lease.ttl());
        if self.attempt(name, &owner, ttl)?.is_none() {
            return Ok(Some(self.held(name, owner, ttl)));
        }
        if request.wait.is_zero() {
            return Ok(None);
        }
        let channel = self.channel(name)?;
        loop {
            // Taken before the attempt, so that a release right after it is not missed.
            let next_release = channel.next_release()?;
            let Some(lease) = self.attempt(name, &owner, ttl)? else {
                return Ok(Some(self.held(name, owner, ttl)));
            };
            let left = request.wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            self.cancel.wait(&next_release, lease.min(left))?;
        }
    }
}

impl Drop for PubSub {
    fn drop(&mut self) {
        let channels = self.channels.get_mut();
        for name in std::mem::take(channels.unwrap_or_else(PoisonError::into_inner)).into_keys() {
            let mut publish = cmd("PUBLISH");
            // If the server is gone, the listener has ended.
            let _ = self
                .connection
                .send::<()>(publish.arg(topic(&name)).arg(GOODBYE));
        }
    }
}

fn topic(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// A lock's channel.
struct Channel {
    /// Opens at the next release, and is replaced by a new one then.
    next_release: Mutex<Arc<Latch>>,
    has_ended: AtomicBool,
}

impl Channel {
    fn new() -> Self {
        Self {
            next_release: Mutex::new(Arc::new(Latch::new())),
            has_ended: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Latch>> {
        let latch = self.next_release.lock();
        latch.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a latch that opens at the next release.
    fn next_release(&self) -> Result<Arc<Latch>, Error> {
        let latch = Arc::clone(&self.lock());
        if self.has_ended.load(Ordering::SeqCst) {
            return Err(Error::failed(
                "the connection that listens for releases was lost; does the server run?",
            ));
        }
        Ok(latch)
    }

    /// Subscribes, reports whether that succeeded, and wakes all waiters at each release.
    fn listen(
        &self,
        mut connection: Connection,
        topic: String,
        subscribed: &Sender<RedisResult<()>>,
    ) {
        let mut subscription = connection.as_pubsub();
        // The thread that subscribes waits for the result.
        let _ = subscribed.send(subscription.subscribe(topic));
        loop {
            let message = subscription.get_message();
            let payload = message.and_then(|message| message.get_payload::<String>());
            let has_ended = !payload.is_ok_and(|payload| payload != GOODBYE);
            self.has_ended.store(has_ended, Ordering::SeqCst);
            std::mem::replace(&mut *self.lock(), Arc::new(Latch::new())).open();
            if has_ended {
                return;
            }
        }
    }
}
