//! What a Redis or Valkey server counts.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::{Connection, InfoDict, cmd};

use super::client::RedisConfig;
use super::keys::Keys;
use crate::error::Error;
use crate::meter::Counter;

/// Reads `INFO`, on a connection of its own.
pub(crate) struct Stats {
    connection: Mutex<Connection>,
    commands: &'static [&'static str],
    /// The commands for these keys do not count.
    state: Option<Arc<Keys>>,
}

impl Stats {
    /// Counts `commands`, except those for `state`.
    pub(crate) fn open(
        config: &RedisConfig,
        commands: &'static [&'static str],
        state: Option<Arc<Keys>>,
    ) -> Result<Self, Error> {
        Ok(Self {
            connection: Mutex::new(config.connect()?),
            commands,
            state,
        })
    }

    fn info(&self, section: &str) -> Result<InfoDict, Error> {
        let mut connection = self.connection.lock();
        Ok(cmd("INFO").arg(section).query(&mut *connection)?)
    }
}

impl Counter for Stats {
    fn commands(&self) -> Result<u64, Error> {
        let info = self.info("commandstats")?;
        let calls = self.commands.iter().filter_map(|name| {
            // calls=3,usec=…
            let stats: String = info.get(&format!("cmdstat_{name}"))?;
            let calls = stats.strip_prefix("calls=")?.split(',').next()?;
            calls.parse::<u64>().ok()
        });
        let state = self.state.as_ref();
        let for_state = state.map_or(0, |keys| keys.sent(self.commands));
        Ok(calls.sum::<u64>().saturating_sub(for_state))
    }

    fn connections(&self) -> Result<u32, Error> {
        let count = self.info("clients")?.get("connected_clients");
        Ok(count.unwrap_or(0))
    }
}
