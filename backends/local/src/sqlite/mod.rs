//! `sqlite:`: locks for all processes of one host, in a SQLite file.

mod acquire;
mod admin;
mod db;
mod lease;
mod line;
mod open;
mod place;
mod process;
mod schema;
mod slot;
mod store;
mod sweep;
mod wake;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use lockkeeper_core::{
    AcquireRequest, Admin, Capabilities, Capability, Clock, Driver, Error, ErrorKind, Grant,
    LockProvider, OpenContext, SystemClock, Usage,
};

use db::Db;
use lease::SqliteLease;
use process::Process;
use store::Store;
use wake::Bells;

const BACKEND: &str = "sqlite";

/// Opens `sqlite:PATH`. With `create=false`, a file that is not there is an error
/// ([`ErrorKind::Incompatible`]) rather than created.
#[derive(Clone, Copy, Debug, Default)]
pub struct SqliteDriver;

impl Driver for SqliteDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["sqlite"]
    }

    fn keys(&self) -> &'static [&'static str] {
        &["create"]
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        let url = target.url();
        if url.host().is_some() {
            return Err(Error::new(
                ErrorKind::InvalidUrl,
                "`sqlite:` has no host; write sqlite:/path, with one slash, or sqlite:path",
            )
            .with_backend(BACKEND));
        }
        let path = url.path()?;
        let create = target.parse("create", "true or false")?.unwrap_or(true);
        let clock = Arc::clone(target.clock());
        let provider = SqliteProvider::new(&path, target.namespace(), clock, create);
        Ok(Arc::new(
            provider.map_err(|error| error.with_backend(BACKEND))?,
        ))
    }
}

/// Locks in a SQLite file, for all processes of one host. Clones share one connection.
///
/// The file is created with its owner's permissions only, and is used for nothing else. Beside it
/// lie SQLite's `-wal` and `-shm` files and, while somebody waits, sockets (`-wake-…`) by which a
/// release wakes the next waiter. A lock whose holder's process has died is granted to the next at
/// once.
///
/// # Limits
/// - One host: network file systems are refused where they can be told (Linux).
/// - Linux and macOS; only Linux is tested. Elsewhere waiters look about once a second and are not
///   woken, and dead holders are found by their ttl alone.
/// - A process that is stopped inside of a write transaction, some microseconds long, keeps the
///   file locked until it goes on; others get [`ErrorKind::Unavailable`] when their wait is over.
/// - When the file (or SQLite's beside it) is deleted or replaced while programs use it, the store has
///   forgotten everything, and the next one is granted what somebody holds. Guards notice at their next
///   renewal, and everybody goes on with the new file. Fixed leases are not renewed, and do not notice.
/// - It is not used on both sides of a fork: what was opened before is refused in the child with
///   [`Incompatible`](ErrorKind::Incompatible), and so is opening the file there as long as that was
///   not dropped. Open it after forking.
/// - While another connection of this program, such as one of the application's own, keeps a deleted
///   `-wal` or `-shm` file open, nothing is granted or renewed ([`ErrorKind::Unavailable`]; Linux).
/// - Containers can share a file by mounting its folder, and then share the host's clock, but dead
///   holders are found at once only within one pid namespace. Refused with
///   [`Incompatible`](ErrorKind::Incompatible) are a file that is mounted alone or has hard links, and
///   a container with an offset of its boottime clock (time_namespaces(7)).
#[derive(Clone)]
pub struct SqliteProvider {
    store: Arc<Store>,
}

impl SqliteProvider {
    /// Opens the database at `path`, and creates it where it is missing; its folder must exist.
    /// Locks of two namespaces never meet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidUrl`] for a path that names no file, [`ErrorKind::PermissionDenied`]
    /// where it cannot be written, [`ErrorKind::Incompatible`] for what is not a lock database on
    /// a local disk, [`ErrorKind::Unavailable`] when another process keeps it locked.
    pub fn open(path: &str, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(path, namespace, Arc::new(SystemClock))
    }

    /// The same, on the clock that its keepers count on: one that all processes which use the file
    /// agree about.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(path: &str, namespace: &str, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let opened = Self::new(path, namespace, clock, true);
        opened.map_err(|error| error.with_backend(BACKEND))
    }

    fn new(
        path: &str,
        namespace: &str,
        clock: Arc<dyn Clock>,
        create: bool,
    ) -> Result<Self, Error> {
        open::check(path)?;
        let db = Db::open(Path::new(path), create, &*clock)?;
        let store = Store {
            bells: Bells::new(db.path()),
            db,
            namespace: namespace.to_owned(),
            clock,
        };
        if create {
            // What cannot be removed now is in nobody's way.
            let _ = store.sweep();
        }
        Ok(Self {
            store: Arc::new(store),
        })
    }
}

impl fmt::Debug for SqliteProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteProvider")
            .field("path", &self.store.db.path())
            .field("file", &open::identity(self.store.db.path()))
            .field("namespace", &self.store.namespace)
            .finish_non_exhaustive()
    }
}

impl LockProvider for SqliteProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities::new().with(Capability::CrossProcess);
        if Process::can_judge() {
            capabilities.with(Capability::DeadOwnerTakeOver)
        } else {
            capabilities
        }
    }

    fn usage(&self) -> Option<Usage> {
        Some(Usage {
            commands: self.store.db.statements(),
            connections: 1,
        })
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(&*self.store)
    }

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant>, Error> {
        let won = acquire::acquire(&self.store, request)?;
        Ok(won.map(|won| Grant {
            lease: Box::new(SqliteLease {
                store: Arc::clone(&self.store),
                name: request.name().clone(),
                epoch: won.epoch,
            }),
            asked_at: won.asked_at,
        }))
    }
}

#[cfg(test)]
mod tests;
