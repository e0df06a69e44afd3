//! What a run costs its store, by the store's own count.
//!
//! Redis counts the commands that the strategy sends (`commandstats`; what scripts run inside has
//! other names), MySQL its `Questions` and `Threads_connected`. What the scenario's data and the
//! counting sent is subtracted. On SQLite, PostgreSQL and etcd the strategy counts. Connections are read when the run is
//! done and before anything is closed, since pools keep theirs open.

use std::time::Duration;

use lockkeeper::Usage;
use parking_lot::Mutex;

use crate::cancel::Cancellation;
use crate::error::Error;

/// The number of connections is polled at this interval until it stays the same. A server notices
/// with a delay that a connection was closed.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// On a server that others use, too, it may never stay the same.
const MAX_POLLS: usize = 100;

/// A server that counts.
pub(crate) trait Counter: Send + Sync {
    /// Returns how many commands the server has received, without those for the scenario's data and
    /// for counting.
    fn commands(&self) -> Result<u64, Error>;

    /// Returns the number of connections to the server, by all clients.
    fn connections(&self) -> Result<u32, Error>;
}

/// Measures what a run costs its store. Where no server counts, the strategy has to.
pub(crate) struct Meter {
    servers: Vec<Server>,
}

struct Server {
    counter: Box<dyn Counter>,
    /// Connections before the strategy was opened.
    connections: u32,
    /// Commands at the last restart; `None` if the server did not reply.
    commands: Mutex<Option<u64>>,
}

impl Meter {
    /// Begins to count. Make the meter before the strategy is opened.
    pub(crate) fn new(
        counters: Vec<Box<dyn Counter>>,
        cancel: &Cancellation,
    ) -> Result<Self, Error> {
        let mut servers = Vec::new();
        for counter in counters {
            servers.push(Server {
                connections: stable_connections(counter.as_ref(), cancel)?,
                commands: Mutex::default(),
                counter,
            });
        }
        Ok(Self { servers })
    }

    /// Counts commands from now on.
    pub(crate) fn restart(&self) {
        for server in &self.servers {
            // A server that was killed for the scenario counts nothing.
            *server.commands.lock() = server.counter.commands().ok();
        }
    }

    /// Returns the commands since the last restart and the additional connections; `None` if no
    /// server counts.
    pub(crate) fn read(&self) -> Result<Option<Usage>, Error> {
        let mut sum = Usage::default();
        for server in &self.servers {
            let Some(before) = *server.commands.lock() else {
                continue;
            };
            let connections = server.counter.connections()?;
            sum.commands += server.counter.commands()?.saturating_sub(before);
            sum.connections += connections.saturating_sub(server.connections);
        }
        Ok((!self.servers.is_empty()).then_some(sum))
    }

    /// Waits until the servers have noticed that the strategy's connections were closed, at most
    /// [`MAX_POLLS`] polls. They would count as older than the next row.
    pub(crate) fn wait_for_close(&self, cancel: &Cancellation) -> Result<(), Error> {
        for server in &self.servers {
            // A server that was killed for the scenario has no connections.
            let is_open = || {
                server
                    .counter
                    .connections()
                    .is_ok_and(|now| now > server.connections)
            };
            for _ in 0..MAX_POLLS {
                if !is_open() {
                    break;
                }
                cancel.sleep(POLL_INTERVAL)?;
            }
        }
        Ok(())
    }
}

/// Polls the number of connections until that of the previous row's meter is gone.
fn stable_connections(counter: &dyn Counter, cancel: &Cancellation) -> Result<u32, Error> {
    let mut last = counter.connections()?;
    for _ in 0..MAX_POLLS {
        cancel.sleep(POLL_INTERVAL)?;
        let now = counter.connections()?;
        if now == last {
            break;
        }
        last = now;
    }
    Ok(last)
}
