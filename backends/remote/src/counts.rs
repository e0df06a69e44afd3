//! Counts of what a provider asks of its server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lockkeeper_core::Usage;

/// The number of commands sent and of connections open.
#[derive(Debug, Default)]
pub struct Counts {
    commands: AtomicU64,
    connections: AtomicU32,
}

impl Counts {
    /// Counts commands that are sent.
    pub fn add_commands(&self, commands: usize) {
        let commands = u64::try_from(commands).unwrap_or(u64::MAX);
        self.commands.fetch_add(commands, Ordering::Relaxed);
    }

    /// Counts a connection until the result is dropped.
    pub fn add_connection(self: &Arc<Self>) -> OpenConnection {
        self.connections.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Returns the numbers for [`LockProvider::usage`](lockkeeper_core::StoreInfo::usage).
    pub fn usage(&self) -> Usage {
        Usage {
            commands: self.commands.load(Ordering::Relaxed),
            connections: self.connections.load(Ordering::Relaxed),
        }
    }
}

/// An open connection, as [`Counts`] counts it.
#[derive(Debug)]
pub struct OpenConnection(Arc<Counts>);

impl OpenConnection {
    /// Counts commands that are sent on it.
    pub fn add_commands(&self, commands: usize) {
        self.0.add_commands(commands);
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}
