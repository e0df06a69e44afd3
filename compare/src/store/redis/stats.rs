//! What a Redis or Valkey server counts.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use redis::{Connection, cmd};

use super::{Door, Tally};
use crate::error::Failure;
use crate::meter::Counter;

/// Reads `INFO`, on a connection of its own.
pub(crate) struct Stats<'a> {
    connection: Mutex<Connection>,
    commands: &'static [&'static str],
    /// What does not count.
    state: Option<&'a Tally>,
}

impl<'a> Stats<'a> {
    /// Counts `commands`, less those for the `state`.
    pub(crate) fn open(
        door: &Door,
        commands: &'static [&'static str],
        state: Option<&'a Tally>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            connection: Mutex::new(door.connect()?),
            commands,
            state,
        })
    }

    fn info(&self, section: &str) -> Result<String, Failure> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Ok(cmd("INFO").arg(section).query(&mut *connection)?)
    }
}

impl Counter for Stats<'_> {
    fn commands(&self) -> Result<u64, Failure> {
        // cmdstat_set:calls=3,usec=…
        let info = self.info("commandstats")?;
        let calls = info.lines().filter_map(|line| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let counts = self.commands.contains(&name);
            let calls = rest.split(',').next()?;
            counts.then(|| calls.parse().unwrap_or(0))
        });
        let all: u64 = calls.sum();
        let state = self.state.map_or(0, |state| state.of(self.commands));
        Ok(all.saturating_sub(state))
    }

    fn connections(&self) -> Result<u32, Failure> {
        let info = self.info("clients")?;
        let count = info.lines().find_map(|line| {
            let count = line.strip_prefix("connected_clients:")?;
            count.trim().parse().ok()
        });
        Ok(count.unwrap_or(0))
    }
}

impl fmt::Debug for Stats<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stats")
            .field("commands", &self.commands)
            .finish_non_exhaustive()
    }
}
