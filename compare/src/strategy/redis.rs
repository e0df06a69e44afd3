//! What the Redis recipes share: a connection, names for holders, and the spin loop.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::redis::{Cmd, Connection, FromRedisValue, RedisResult, ScriptInvocation};

use super::lock::LockRequest;
use crate::cancel::Cancellation;
use crate::error::Error;
use crate::store::redis::client::RedisConfig;

/// Deletes the lock if it still has this owner: how all the better recipes release it.
pub(super) const DELETE_IF_OWNED: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// One connection that all threads of the program share, as Lettuce has it.
pub(super) struct SharedConnection(Mutex<Connection>);

impl SharedConnection {
    pub(super) fn open(config: &RedisConfig) -> Result<Self, Error> {
        Ok(Self(Mutex::new(config.connect()?)))
    }

    /// Sends a command.
    pub(super) fn send<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a script, and loads it first if the server does not know it.
    pub(super) fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> RedisResult<T> {
        script.invoke(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Makes names for owners: a random part for the program, and one for the hold or the thread.
pub(super) struct Owners {
    program: u64,
    holds: AtomicU64,
}

impl Owners {
    pub(super) fn new() -> Self {
        Self {
            // Keyed from the system's random numbers.
            program: RandomState::new().hash_one(std::process::id()),
            holds: AtomicU64::new(0),
        }
    }

    /// Returns a name that no other hold has.
    pub(super) fn hold(&self) -> String {
        let hold = self.holds.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}:{hold}", self.program)
    }

    /// Returns this thread's name, which is the same each time.
    pub(super) fn thread(&self) -> String {
        format!("{:016x}:{:?}", self.program, thread::current().id())
    }
}

/// Repeats `attempt` until it succeeds or the wait is over, and sleeps for `pace` in between.
pub(super) fn spin<T>(
    request: LockRequest,
    pace: impl Fn() -> Duration,
    cancel: &Cancellation,
    attempt: impl Fn() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let started = Instant::now();
    loop {
        if let Some(held) = attempt()? {
            return Ok(Some(held));
        }
        let left = request.wait.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        cancel.sleep(pace().min(left))?;
    }
}

/// Converts a ttl for `PX` and `PEXPIRE`.
pub(super) fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}
