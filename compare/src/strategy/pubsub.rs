//! Redisson's lock: a script takes it, or answers how long the holder's lease still lasts; who did
//! not get it listens on the lock's channel until the release is published there, but no longer
//! than that lease, nor than the wait that is left.
//!
//! That is far fewer commands than asking all the time. But every waiter listens: each release wakes
//! all of them, and all but one ask in vain. Taken with a lease time, as the write-ups do, nothing
//! renews it; a late holder finds out when it unlocks ("attempt to unlock lock, not locked by
//! current thread"), after its late write went through.

use std::collections::HashMap;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lockkeeper::CancelToken;
use redis::{Connection, RedisResult, Script, cmd};

use super::lock::{Held, Lock, Terms};
use super::redis::{Owners, Shared, milliseconds};
use crate::error::Failure;
use crate::store::redis::Door;

/// A waiter looks up so often, to see whether the run was interrupted.
const LOOK_UP: Duration = Duration::from_millis(100);

/// Takes it or counts up, and answers nil; else what is left of the holder's lease.
const TAKE: &str = "
if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('HINCRBY', KEYS[1], ARGV[2], 1)
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return nil
end
return redis.call('PTTL', KEYS[1])";

/// Counts down; at zero it deletes the lock and tells everybody.
const FREE: &str = "
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return nil end
if redis.call('HINCRBY', KEYS[1], ARGV[2], -1) > 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[2], 'free')
return 1";

/// What ends a channel's listener.
const GOODBYE: &str = "goodbye";

/// A lock script, and a channel for each lock.
#[derive(Debug)]
pub(crate) struct PubSub {
    shared: Arc<Shared>,
    door: Door,
    take: Script,
    free: Arc<Script>,
    owners: Owners,
    channels: Mutex<HashMap<String, Arc<Channel>>>,
    stop: CancelToken,
}

impl PubSub {
    /// Connects.
    pub(crate) fn open(door: &Door, stop: &CancelToken) -> Result<Self, Failure> {
        Ok(Self {
            shared: Arc::new(Shared::open(door)?),
            door: door.clone(),
            take: Script::new(TAKE),
            free: Arc::new(Script::new(FREE)),
            owners: Owners::new(),
            channels: Mutex::default(),
            stop: stop.clone(),
        })
    }

    /// The channel of the lock; the first waiter of the program subscribes to it.
    fn channel(&self, name: &str) -> Result<Arc<Channel>, Failure> {
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(name) {
            return Ok(Arc::clone(channel));
        }
        let channel = Arc::new(Channel::default());
        let (connection, heard) = (self.door.connect()?, Arc::clone(&channel));
        // A listener waits for as long as nothing happens.
        connection.set_read_timeout(None)?;
        let (subscribed, is_subscribed) = mpsc::channel();
        let listen = listener(connection, channel_of(name), heard, subscribed);
        thread::Builder::new()
            .name("listener".to_owned())
            .spawn(listen)
            .map_err(|error| Failure::Failed(format!("no thread for a listener: {error}")))?;
        // Only what is published after that is heard.
        let lost = |_| Failure::Failed("the listener ended before it began".to_owned());
        is_subscribed.recv().map_err(lost)??;
        channels.insert(name.to_owned(), Arc::clone(&channel));
        Ok(channel)
    }

    /// `None`: it is taken. Else what is left of the holder's lease.
    fn attempt(&self, name: &str, owner: &str, ttl: Duration) -> Result<Option<Duration>, Failure> {
        let mut take = self.take.key(name);
        let take = take.arg(milliseconds(ttl)).arg(owner);
        let left: Option<i64> = self.shared.run(take)?;
        Ok(left.map(|left| Duration::from_millis(u64::try_from(left).unwrap_or(0))))
    }
}

impl Lock for PubSub {
    fn take(&self, name: &str, terms: Terms) -> Result<Option<Box<dyn Held>>, Failure> {
        let (asked, owner, ttl) = (Instant::now(), self.owners.thread(), terms.lease.ttl());
        let hold = || {
            Box::new(Hold {
                shared: Arc::clone(&self.shared),
                free: Arc::clone(&self.free),
                name: name.to_owned(),
                owner: Some(owner.clone()),
                ttl,
            }) as Box<dyn Held>
        };
        if self.attempt(name, &owner, ttl)?.is_none() {
            return Ok(Some(hold()));
        }
        if terms.wait.is_zero() {
            return Ok(None);
        }
        let channel = self.channel(name)?;
        loop {
            // Noted before asking, so that a release right after it is not missed.
            let heard = channel.heard();
            let Some(holders) = self.attempt(name, &owner, ttl)? else {
                return Ok(Some(hold()));
            };
            let left = terms.wait.saturating_sub(asked.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            channel.wait(heard, holders.min(left), &self.stop)?;
        }
    }
}

impl Drop for PubSub {
    fn drop(&mut self) {
        let channels = self.channels.get_mut();
        for name in std::mem::take(channels.unwrap_or_else(PoisonError::into_inner)).into_keys() {
            let mut publish = cmd("PUBLISH");
            // Where the server is gone, the listener has ended.
            let _ = self
                .shared
                .ask::<()>(publish.arg(channel_of(&name)).arg(GOODBYE));
        }
    }
}

fn channel_of(name: &str) -> String {
    format!("redisson_lock__channel:{{{name}}}")
}

/// Counts what is heard on a channel.
#[derive(Debug, Default)]
struct Channel {
    releases: Mutex<Heard>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Heard {
    releases: u64,
    ended: bool,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.releases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> Heard {
        *self.lock()
    }

    /// Until more is heard than `before`, for at most this long.
    fn wait(&self, before: Heard, limit: Duration, stop: &CancelToken) -> Result<(), Failure> {
        let end = Instant::now() + limit;
        let mut now = self.lock();
        while *now == before {
            if stop.is_cancelled() {
                return Err(Failure::Interrupted);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(now, left.min(LOOK_UP));
            now = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if now.ended {
            return Err(Failure::Failed(
                "the connection that listens for releases was lost; does the server run?"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}

/// Subscribes, says whether that came off, and wakes every waiter at each release.
fn listener(
    mut connection: Connection,
    name: String,
    channel: Arc<Channel>,
    subscribed: mpsc::Sender<RedisResult<()>>,
) -> impl FnOnce() {
    move || {
        let mut subscription = connection.as_pubsub();
        // Whoever asked waits for the answer.
        let _ = subscribed.send(subscription.subscribe(name));
        loop {
            let message = subscription.get_message();
            let payload = message.and_then(|message| message.get_payload::<String>());
            let ended = !payload.is_ok_and(|payload| payload != GOODBYE);
            let mut heard = channel.lock();
            heard.releases += 1;
            heard.ended = ended;
            channel.changed.notify_all();
            if ended {
                return;
            }
        }
    }
}

struct Hold {
    shared: Arc<Shared>,
    free: Arc<Script>,
    name: String,
    /// `None` once it is released.
    owner: Option<String>,
    ttl: Duration,
}

impl Hold {
    fn free(&mut self) -> Result<(), Failure> {
        let Some(owner) = self.owner.take() else {
            return Ok(());
        };
        let mut free = self.free.key(&self.name);
        let free = free.key(channel_of(&self.name));
        // Nil is Redisson's IllegalMonitorStateException: lost before, and too late to know.
        self.shared
            .run::<Option<i64>>(free.arg(milliseconds(self.ttl)).arg(owner))?;
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
