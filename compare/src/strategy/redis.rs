//! What the Redis recipes share: a connection, and names for owners.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ::redis::{Cmd, Connection, FromRedisValue, RedisResult, Script, ToRedisArgs, cmd};
use parking_lot::Mutex;

use crate::cancel::Cancellation;
use crate::error::Error;
use crate::random::random;
use crate::store::redis::client::RedisConfig;

/// Deletes the lock if it still has this owner: how all the better recipes release it.
pub(super) const DELETE_IF_OWNED: &str = "
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// What a program needs to lock on a server.
#[derive(Clone)]
pub(super) struct Client {
    /// The one connection that all threads of the program share, as Lettuce has it.
    connection: Arc<Mutex<Connection>>,
    pub(super) owners: Owners,
    pub(super) cancel: Cancellation,
}

impl Client {
    pub(super) fn open(config: &RedisConfig, cancel: &Cancellation) -> Result<Self, Error> {
        Ok(Self {
            connection: Arc::new(Mutex::new(config.connect()?)),
            owners: Owners::new(),
            cancel: cancel.clone(),
        })
    }

    /// Sends a command.
    pub(super) fn send<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        command.query(&mut *self.connection.lock())
    }

    /// Runs a script, and loads it first if the server does not know it.
    pub(super) fn run<T: FromRedisValue>(
        &self,
        script: &str,
        keys: impl ToRedisArgs,
        args: impl ToRedisArgs,
    ) -> RedisResult<T> {
        let script = Script::new(script);
        let mut invocation = script.key(keys);
        invocation.arg(args).invoke(&mut *self.connection.lock())
    }
}

/// The keys that a recipe leaves on the server. They are deleted when this is dropped: a comparison leaves nothing there.
pub(super) struct LeftKeys {
    client: Client,
    names: Mutex<BTreeSet<String>>,
}

impl LeftKeys {
    pub(super) fn new(client: &Client) -> Self {
        let names = Mutex::default();
        let client = client.clone();
        Self { client, names }
    }

    pub(super) fn add(&self, name: &str) {
        self.names.lock().insert(name.to_owned());
    }
}

impl Drop for LeftKeys {
    fn drop(&mut self) {
        for name in self.names.get_mut().iter() {
            // If the server is gone, the key is gone, too.
            let _ = self.client.send::<()>(cmd("DEL").arg(name));
        }
    }
}

/// Makes names for owners: a random part for the program, and one for the hold or the thread.
#[derive(Clone)]
pub(super) struct Owners {
    program: u64,
    holds: Arc<AtomicU64>,
}

impl Owners {
    pub(super) fn new() -> Self {
        Self {
            program: random(),
            holds: Arc::default(),
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

/// Converts a ttl for `PX` and `PEXPIRE`.
pub(super) fn milliseconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)
}
