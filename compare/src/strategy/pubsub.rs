//! Redisson's lock: a script acquires it, or returns how long the holder's lease still lasts. A
//! waiter listens on the lock's channel until a release is published there. It listens no longer
//! than that lease lasts, and no longer than its own wait.
//!
//! That takes far fewer commands than asking all the time. But every waiter listens: each release
//! wakes all of them, and all but one try in vain. With a fixed lease, as in the write-ups, nothing
//! renews the lock. A late holder finds out when it unlocks ("attempt to unlock lock, not locked by
//! current thread"), after its late write went through.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use parking_lot::Mutex;
use redis::{Connection, RedisResult, cmd};

use super::lock::{Held, Lock, LockRequest};
use super::redis::{Client, milliseconds};
use crate::cancel::Latch;
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

pub(super) struct PubSub {
    client: Client,
    config: RedisConfig,
    channels: Mutex<HashMap<String, Channel>>,
}

impl PubSub {
    pub(super) fn new(client: Client, config: &RedisConfig) -> Self {
        Self {
            client,
            config: config.clone(),
            channels: Mutex::default(),
        }
    }

    /// Returns the channel of the lock; the first waiter of the program subscribes to it.
    fn channel(&self, name: &str) -> Result<Channel, Error> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(name) {
            return Ok(channel.clone());
        }
        let connection = self.config.connect()?;
        // A listener waits for as long as nothing is published.
        connection.set_read_timeout(None)?;
        let channel = Channel::new();
        let (subscribed, is_subscribed) = bounded(1);
        let (listening, topic) = (channel.clone(), topic(name));
        thread::Builder::new()
            .name("listener".to_owned())
            .spawn(move || listening.listen(connection, topic, &subscribed))
            .map_err(|error| Error::failed(format!("cannot start a listener: {error}")))?;
        // Only what is published after this is received.
        let ended = |_| Error::failed("the listener ended before it subscribed");
        is_subscribed.recv().map_err(ended)??;
        channels.insert(name.to_owned(), channel.clone());
        Ok(channel)
    }

    /// Returns the lock, or the rest of its holder's lease.
    fn attempt(&self, name: &str, ttl: Duration) -> Result<Result<Held, Duration>, Error> {
        let (owner, ttl) = (self.client.owners.thread(), milliseconds(ttl));
        let left: Option<i64> = self.client.run(ACQUIRE, name, (ttl, &owner))?;
        if let Some(left) = left {
            return Ok(Err(Duration::from_millis(u64::try_from(left).unwrap_or(0))));
        }
        let (client, keys) = (self.client.clone(), (name.to_owned(), topic(name)));
        Ok(Ok(Held::new(move || {
            // Nil is Redisson's IllegalMonitorStateException: the lock was lost, too late to know.
            client.run::<Option<i64>>(RELEASE, keys, (ttl, owner))?;
            Ok(())
        })))
    }
}

impl Lock for PubSub {
    fn acquire(&self, name: &str, request: LockRequest) -> Result<Option<Held>, Error> {
        let (started, ttl) = (Instant::now(), request.lease.ttl());
        let mut channel: Option<Channel> = None;
        loop {
            // Taken before the attempt, so that a release right after it is not missed.
            let next_release = channel.as_ref().map(Channel::next_release).transpose()?;
            let lease = match self.attempt(name, ttl)? {
                Ok(held) => return Ok(Some(held)),
                Err(lease) => lease,
            };
            let left = request.wait.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            if let Some(next_release) = next_release {
                self.client.cancel.wait(&next_release, lease.min(left))?;
            } else {
                channel = Some(self.channel(name)?);
            }
        }
    }
}

impl Drop for PubSub {
    fn drop(&mut self) {
        for name in self.channels.get_mut().keys() {
            let mut publish = cmd("PUBLISH");
            let publish = publish.arg(topic(name)).arg(GOODBYE);
            // If the server is gone, the listener has ended.
            let _ = self.client.send::<()>(publish);
        }
    }
}

fn topic(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// A lock's channel: a latch that opens at the next release, and is replaced by a new one then.
/// `None` when its listener has ended.
#[derive(Clone)]
struct Channel(Arc<Mutex<Option<Latch>>>);

impl Channel {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Latch::new()))))
    }

    /// Returns a latch that opens at the next release.
    fn next_release(&self) -> Result<Latch, Error> {
        self.0.lock().clone().ok_or_else(|| {
            Error::failed("the connection that listens for releases was lost; does the server run?")
        })
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
            let is_release = payload.is_ok_and(|payload| payload != GOODBYE);
            let next = is_release.then(Latch::new);
            if let Some(latch) = std::mem::replace(&mut *self.0.lock(), next) {
                latch.open();
            }
            if !is_release {
                return;
            }
        }
    }
}
