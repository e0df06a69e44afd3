//! A Redis server for a group of rows, and what it counts.

use std::error::Error;
use std::fmt;

use lockkeeper_testkit::{RedisKind, RedisOptions, RedisServer};

/// What a client sends for a lock. What scripts run within the server is counted there, too, under
/// other names; of these it is never.
const SENT: [&str; 9] = [
    "evalsha",
    "eval",
    "script|load",
    "subscribe",
    "unsubscribe",
    "ping",
    "auth",
    "select",
    "wait",
];

/// There is no server on this machine.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl Missing {
    /// What to say instead of a row.
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

/// A server of its own, of the first kind that there is.
pub(crate) fn start() -> Result<RedisServer, Box<dyn Error>> {
    let mut missing = Vec::new();
    for kind in RedisKind::ALL {
        match kind.program() {
            Ok(_) => return Ok(RedisServer::start(kind, &RedisOptions::new())?),
            Err(why) => missing.push(why),
        }
    }
    Err(Missing::new(missing.join("; ")).into())
}

/// A connection that nothing is added to.
pub(crate) fn raw(server: &RedisServer) -> Result<redis::Connection, Box<dyn Error>> {
    Ok(redis::Client::open(server.url())?.get_connection()?)
}

/// What locks have sent to it so far, by its own count.
pub(crate) fn sent(server: &RedisServer) -> Result<u64, Box<dyn Error>> {
    let calls = server.calls()?;
    Ok(SENT.iter().filter_map(|name| calls.get(*name)).sum())
}
