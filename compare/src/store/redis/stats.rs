//! What a Redis or Valkey server counts.

use std::sync::{Mutex, PoisonError};

use redis::{Connection, cmd};

use super::client::RedisConfig;
use super::keys::SentCommands;
use crate::error::Error;
use crate::meter::Counter;

/// Reads `INFO`, on a connection of its own.
pub(crate) struct Stats<'a> {
    connection: Mutex<Connection>,
    commands: &'static [&'static str],
    /// Commands that do not count.
    sent_for_state: Option<&'a SentCommands>,
}

impl<'a> Stats<'a> {
    /// Counts `commands`, except those in `sent_for_state`.
    pub(crate) fn open(
        config: &RedisConfig,
        commands: &'static [&'static str],
        sent_for_state: Option<&'a SentCommands>,
    ) -> Result<Self, Error> {
        Ok(Self {
            connection: Mutex::new(config.connect()?),
            commands,
            sent_for_state,
        })
    }

    fn info(&self, section: &str) -> Result<String, Error> {
        let connection = self.connection.lock();
        let mut connection = connection.unwrap_or_else(PoisonError::into_inner);
        Ok(cmd("INFO").arg(section).query(&mut *connection)?)
    }
}

impl Counter for Stats<'_> {
    fn commands(&self) -> Result<u64, Error> {
        // cmdstat_set:calls=3,usec=…
        let info = self.info("commandstats")?;
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let counts = self.commands.contains(&name);
            let calls = rest.split(',').next()?;
            counts.then(|| calls.parse().unwrap_or(0))
        });
        let all: u64 = calls.sum();
        let for_state = self.sent_for_state.map_or(0, |sent| sent.of(self.commands));
        Ok(all.saturating_sub(for_state))
    }

    fn connections(&self) -> Result<u32, Error> {
        let info = self.info("clients")?;
        let count = info.lines().find_map(|line| {
            let count = line.strip_prefix("connected_clients:")?;
            count.trim().parse().ok()
        });
        Ok(count.unwrap_or(0))
    }
}
