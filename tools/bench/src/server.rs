//! A Redis server for a group of rows, and its counters of commands.

use std::error::Error;
use std::fmt;

use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer};

/// The commands that a client sends for a lock. The server also counts those that scripts run, which have
/// other names.
const SENT: [&str; 11] = [
    "evalsha",
    "eval",
    "script|load",
    "hello",
    "client|tracking",
    "subscribe",
    "unsubscribe",
    "ping",
    "auth",
    "select",
    "wait",
];

/// The error when this machine has no server of that kind.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl Missing {
    /// Makes the error from the text that is printed instead of a row.
    pub(crate) fn new(why: String) -> Self {
        Self(why)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Missing {}

/// Returns the first kind of server that this machine has.
pub(crate) fn kind() -> Result<RedisKind, Missing> {
    let mut missing = Vec::new();
    for kind in RedisKind::ALL {
        match kind.program() {
            Ok(_) => return Ok(kind),
            Err(why) => missing.push(why),
        }
    }
    Err(Missing::new(missing.join("; ")))
}

/// Starts a server of that kind.
pub(crate) fn start() -> Result<RedisServer, Box<dyn Error>> {
    Ok(RedisServer::start(kind()?, &RedisOptions::new())?)
}

/// Returns the bytes that the server uses, by its own count.
pub(crate) fn used_memory(server: &RedisServer) -> Result<f64, Box<dyn Error>> {
    let memory = server.info("memory")?;
    let used = memory.get("used_memory").ok_or("no used_memory")?;
    Ok(used.parse()?)
}

/// Opens a raw connection.
pub(crate) fn raw(server: &RedisServer) -> Result<redis::Connection, Box<dyn Error>> {
    Ok(redis::Client::open(server.url())?.get_connection()?)
}

/// Loads the script by which a lock made with `SET NX PX` is released, and returns its SHA-1. It takes the
/// key and the owner, and returns 0 if the key has another owner.
pub(crate) fn load_release(raw: &mut redis::Connection) -> redis::RedisResult<String> {
    let script = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])";
    redis::cmd("SCRIPT").arg("LOAD").arg(script).query(raw)
}

/// Returns how many commands for locks the server was sent so far, by its own count.
pub(crate) fn sent(server: &RedisServer) -> Result<u64, Box<dyn Error>> {
    let calls = server.calls()?;
    Ok(SENT.iter().filter_map(|name| calls.get(*name)).sum())
}
