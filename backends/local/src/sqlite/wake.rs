//! Notifications between processes. Every waiter receives datagrams on a socket that is bound to a file
//! beside the database, and the row of the waiter names that file. A provider that has granted locks has
//! another socket, which receives notifications of leases that have ended.
//!
//! A notification makes the waiter attempt the lock earlier. Without it, or where no socket can be
//! bound, the waiter polls.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::lock;

mod socket;

pub(super) use socket::Parker;
use socket::SocketFolder;

/// The result of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notified {
    /// The notification was sent, or this system cannot send it.
    Maybe,
    /// No process receives at that address any more.
    Gone,
}

/// What a parker waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A name that is released.
    Waiter,
    /// The end of leases that this process holds.
    Holder,
}

impl Role {
    /// Returns the mark of the role in an address.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Waiter => "",
            Self::Holder => "holder-",
        }
    }
}

/// Notifies all processes that hold leases of the database at `path` that it is a new file.
pub(super) fn notify_all_holders(path: &Path) {
    SocketFolder::new(path).notify_holders(None);
}

/// The idle parkers of one provider, and the sender to the parkers of other processes.
#[derive(Debug)]
pub(super) struct ParkerPool {
    idle: Mutex<Vec<Arc<Parker>>>,
    folder: SocketFolder,
}

/// The number of idle parkers that are kept. More threads rarely wait at once.
const MAX_IDLE: usize = 8;

impl ParkerPool {
    /// Creates the pool for the database at the absolute `path`, and removes the sockets of dead
    /// processes.
    pub(super) fn new(path: &Path) -> Self {
        let folder = SocketFolder::new(path);
        folder.remove_dead_sockets();
        Self {
            idle: Mutex::default(),
            folder,
        }
    }

    /// Returns a parker without pending notifications.
    pub(super) fn take(&self) -> Arc<Parker> {
        let idle = lock(&self.idle).pop();
        let parker = idle
            .filter(|parker| parker.exists())
            .unwrap_or_else(|| Arc::new(self.folder.bind_waiter()));
        parker.clear();
        parker
    }

    /// Keeps a parker that is no longer in a waiter's row. A parker that other processes cannot reach, since no
    /// descriptor was left for it, is dropped: the next waiter may get a better one.
    pub(super) fn keep(&self, parker: Arc<Parker>) {
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE && !parker.address().is_empty() {
            idle.push(parker);
        }
    }

    /// Returns a parker that receives notifications of ended leases for a provider. Returns `None` if no
    /// other process could notify it.
    pub(super) fn holder(&self) -> Option<Parker> {
        self.folder.try_bind(Role::Holder)
    }

    /// Notifies the process `pid` that one of its leases has ended.
    pub(super) fn notify_holder(&self, pid: u32) {
        self.folder.notify_holders(Some(pid));
    }

    /// Notifies the parker at `address`, in this or another process.
    pub(super) fn notify(&self, address: &str) -> Notified {
        self.folder.notify(address)
    }
}

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WakeReason {
    /// A notification arrived, or time passed.
    Poll,
    /// The watched holder with this index ended.
    HolderEnded(usize),
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    #[test]
    fn sockets_work_in_folders_with_long_paths_and_for_long_names() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("long".repeat(40));
        fs::create_dir(&folder).unwrap();
        let name = "locks".repeat(40);
        fs::write(folder.join(&name), "").unwrap();
        let parkers = ParkerPool::new(&folder.join(&name));
        // As if no descriptor had been left for the last waiter.
        parkers.keep(Arc::new(Parker::default()));
        let parker = parkers.take();
        assert_eq!(parker.address().is_empty(), !cfg!(target_os = "linux"));
        assert_eq!(parkers.notify(parker.address()), Notified::Maybe);
        parker.wait(&[], Duration::from_secs(60));
        let gone = parker.address().to_owned();
        drop(parker);
        if cfg!(target_os = "linux") {
            assert_eq!(parkers.notify(&gone), Notified::Gone);
        }
        let files = fs::read_dir(&folder).unwrap().flatten();
        let names: Vec<_> = files.map(|file| file.file_name()).collect();
        assert_eq!(names, [name.as_str()]);
    }
}
