//! What the Redis recipes share: a connection, a name for who holds, and patience.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ::redis::{Cmd, Connection, FromRedisValue, RedisResult, ScriptInvocation};
use lockkeeper::CancelToken;

use super::lock::Terms;
use crate::cancel::pause;
use crate::error::Failure;
use crate::store::redis::Door;

/// Deletes the lock if it is still this owner's: what all the better recipes free it with.
pub(super) const DELETE_IF_MINE: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// One connection that all threads of the program share, as Lettuce has it: one command at a time.
pub(super) struct Shared(Mutex<Connection>);

impl Shared {
    pub(super) fn open(door: &Door) -> Result<Self, Failure> {
        Ok(Self(Mutex::new(door.connect()?)))
    }

    /// Sends a command.
    pub(super) fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs a script, which is loaded the first time.
    pub(super) fn run<T: FromRedisValue>(&self, script: &ScriptInvocation<'_>) -> RedisResult<T> {
        script.invoke(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// Names for who holds: a random part for the program, as a UUID is there, and one for the hold or
/// the thread.
#[derive(Debug)]
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

    /// A name that no other hold has.
    pub(super) fn hold(&self) -> String {
        let hold = self.holds.fetch_add(1, Ordering::Relaxed);
        format!("{:016x}:{hold}", self.program)
    }

    /// The same name each time this thread asks.
    pub(super) fn thread(&self) -> String {
        format!("{:016x}:{:?}", self.program, thread::current().id())
    }
}

/// Tries until it comes off or the wait is over, and sleeps for `pace` in between: the spin lock.
pub(super) fn spin<T>(
    terms: Terms,
    pace: impl Fn() -> Duration,
    stop: &CancelToken,
    attempt: impl Fn() -> Result<Option<T>, Failure>,
) -> Result<Option<T>, Failure> {
    let asked = Instant::now();
    loop {
        if let Some(held) = attempt()? {
            return Ok(Some(held));
        }
        let left = terms.wait.saturating_sub(asked.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        pause(stop, pace().min(left))?;
    }
}

/// For `PX` and `PEXPIRE`.
pub(super) fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}
