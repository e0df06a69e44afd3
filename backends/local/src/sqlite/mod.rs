//! `sqlite:`: locks for all processes of one host, in a SQLite file.

// What must never be otherwise:
// - A SQLite waiter that responds always has a row of its name ahead of it: a holder or a reservation. So the
//   one statement that takes a name without rows passes no waiter.
// - All live rows of a SQLite name have one mode, and a reservation counts as a holder.
// - No user may write the folder of a SQLite file who may not write the file; `ownership.rs` has the rules.
// - No SQLite lock is granted on files that other processes do not have. Deleted, replaced or inherited files
//   (fork) are refused; `connection.rs` has the rules.

mod acquire;
mod admin;
mod attempt;
mod batch;
mod connection;
mod db;
mod error;
mod examine;
mod holders;
mod lease;
mod listener;
mod location;
mod open;
mod ownership;
mod process;
mod retry;
mod schema;
mod store;
mod sweep;
mod wait_queue;
mod wake;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[cfg(doc)]
use lockkeeper_core::ErrorKind;
use lockkeeper_core::{
    AcquireRequest, Admin, Backend, Capabilities, Capability, Clock, Driver, Error, Grant,
    HostInstant, Key, KeySpec, LeaseId, LeaseVerifier, LockProvider, OpenContext, Operation,
    ReleaseDispatch, StoreInfo, StoreUrl, SystemClock, Takes, Usage,
};

use db::Db;
use error::unknown;
use holders::LockRow;
use lease::SqliteLease;
use listener::LeaseListener;
use process::Process;
use retry::BusyRetry;
use store::Store;

use wake::ParkerPool;

const BACKEND: &str = "sqlite";

/// Opens `sqlite:PATH`, also written `sqlite://PATH`. With `create=false`, a missing file is an error ([`ErrorKind::Incompatible`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct SqliteDriver;

/// The longest that a drop waits for another process that writes: some ten of its writes.
const DROP_LIMIT: Duration = Duration::from_millis(2);

impl SqliteDriver {
    /// Whether a missing file is created.
    pub const CREATE: Key<bool> = Key::new(
        "create",
        Takes::FLAG,
        "true",
        "whether a missing file is created",
    );
}

impl Driver for SqliteDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &["sqlite"]
    }

    fn keys(&self) -> &'static [KeySpec] {
        const { &[Self::CREATE.spec] }
    }

    fn epochs_follow_clock(&self) -> bool {
        true
    }

    fn check(&self, context: &OpenContext<'_>) -> Result<(), Error> {
        location::check_path(context.url().path()).map_err(|error| error.with_backend(BACKEND))
    }

    fn open(&self, target: &OpenContext<'_>) -> Result<Arc<dyn LockProvider>, Error> {
        self.check(target)?;
        let path = target.url().path();
        let create = target.value(&Self::CREATE)?.unwrap_or(true);
        let clock = Arc::clone(target.clock());
        let provider = SqliteProvider::new(path, target.namespace(), clock, create)?;
        Ok(Arc::new(provider))
    }
}

/// Locks in a SQLite file, for all processes of one host. Clones share one connection.
///
/// The file is created with permissions for its owner only, and contains nothing else. Beside it are SQLite's `-wal`
/// and `-shm` files and sockets (`.lockkeeper-…-wake-…`). While a thread waits, a release notifies it on its socket. While a
/// program has locks, another socket and a thread tell its keepers when another process, such as `lockkeeper unlock`,
/// ended a lease. The guard is lost at once. The lock of a dead process is granted to the next waiter at once.
///
/// # Limits
/// - No user may write the folder who may not write the file: such a user could break the locks. Such a folder, and
///   files of other users beside the database, are refused with
///   [`PermissionDenied`](ErrorKind::PermissionDenied). Use a folder of its own, not `/tmp`.
/// - One host: network file systems are refused where they can be recognised (Linux).
/// - Linux and macOS; only Linux is tested.
/// - A process that is stopped in a write transaction, which takes some microseconds, keeps the file
///   locked until it resumes. Other processes get [`ErrorKind::Unavailable`] when their wait is over.
/// - If the file, or one of SQLite's beside it, is deleted or replaced, the store is empty, and held names are
///   granted again. Guards are lost as soon as a program creates the file again, or their own process uses it. A file
///   that was put in its place, and deleted `-wal` or `-shm` files, are noticed by the next use or renewal. All
///   programs continue with the new file.
/// - A provider that was opened before a fork is refused in the child with [`Incompatible`](ErrorKind::Incompatible).
///   So is opening the file in the child before that provider is dropped. Open the file after forking.
/// - While another connection of this program keeps a deleted `-wal` or `-shm` file open, no lock is
///   granted or renewed ([`ErrorKind::Unavailable`]; Linux).
/// - Containers can share a file by mounting its folder. Dead holders are found at once only within
///   one pid namespace. A file that is mounted alone or has hard links is refused with
///   [`Incompatible`](ErrorKind::Incompatible). So is a container whose boottime clock has an offset
///   (time_namespaces(7)).
#[derive(Clone, Debug)]
pub struct SqliteProvider {
    store: Arc<Store>,
}

impl SqliteProvider {
    /// Opens the database at `path`, and creates a missing file in an existing folder. Namespaces are
    /// separate.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidUrl`] for a path that names no file.
    /// - [`ErrorKind::PermissionDenied`] if the file cannot be written.
    /// - [`ErrorKind::Incompatible`] if it is not a lock database on a local disk.
    /// - [`ErrorKind::Unavailable`] while another process keeps it locked.
    pub fn open(path: &str, namespace: &str) -> Result<Self, Error> {
        Self::with_clock(path, namespace, Arc::new(SystemClock))
    }

    /// Opens the database on the clock of its keepers. All processes that use the file must have the
    /// same clock.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn with_clock(path: &str, namespace: &str, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        Self::new(path, namespace, clock, true)
    }

    fn new(
        path: &str,
        namespace: &str,
        clock: Arc<dyn Clock>,
        create: bool,
    ) -> Result<Self, Error> {
        let db = location::check_path(path)
            .and_then(|()| Db::open(Path::new(path), create, &*clock))
            .map_err(|error| error.with_backend(BACKEND))?;
        let store = Store {
            parkers: ParkerPool::new(db.path()),
            listener: LeaseListener::new(),
            db,
            namespace: namespace.to_owned(),
            clock,
        };
        if create {
            // Rows that remain are removed at the next opening.
            let _ = store.sweep();
        }
        Ok(Self {
            store: Arc::new(store),
        })
    }
}

impl StoreInfo for SqliteProvider {
    fn backend(&self) -> &'static str {
        BACKEND
    }

    fn location(&self) -> String {
        let path = self.store.db.path().to_string_lossy();
        let namespace = self.store.namespace.as_str();
        StoreUrl::location("sqlite:", &path, &[("namespace", namespace)])
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = Capabilities::new()
            .with(Capability::CrossProcess)
            .with(Capability::Shared)
            .with(Capability::Permits)
            .with(Capability::ProposedEpoch)
            .with(Capability::Tickets)
            .with_batch(batch::MAX_OPERATIONS);
        if Process::can_detect_ends() {
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
}

impl Backend for SqliteProvider {
    type Lease = SqliteLease;

    fn acquire(&self, request: &AcquireRequest<'_>) -> Result<Option<Grant<SqliteLease>>, Error> {
        acquire::acquire(&self.store, request)
    }

    fn abandon(&self, request: &AcquireRequest<'_>) {
        let (store, owner) = (&*self.store, request.owner());
        let key = store.key(request.name(), request.mode().is_permit());
        let is_own = |held: &LockRow| held.is_of(&owner);
        // Where this fails, the ttl frees the name.
        let _ = store.end_hold(key, is_own, &store.brief_retry());
    }

    fn batch(&self, batch: &mut [Operation<'_, SqliteLease>]) {
        batch::batch(&self.store, batch);
    }

    /// Releases the lease at once: that takes microseconds, and a switch to another thread would take longer. If another
    /// process writes for longer, a thread of the keeper repeats it.
    fn send_release(&self, lease: &mut SqliteLease) -> ReleaseDispatch {
        let clock = &*self.store.clock;
        let retry = BusyRetry::until(clock, clock.now() + DROP_LIMIT);
        ReleaseDispatch::Answered(self.store.release(lease, &retry).map_err(unknown))
    }

    fn detach(
        &self,
        lease: &mut SqliteLease,
        ttl: Duration,
        deadline: HostInstant,
    ) -> Result<Option<LeaseId>, Error> {
        let store = &*self.store;
        let (retry, key) = (
            BusyRetry::until(&*store.clock, deadline),
            store.lease_key(lease),
        );
        let detached = store.db.run(&retry, |session| {
            lease::detach(session, key, lease, store.clock.now(), ttl)
        });
        detached.map_err(unknown)
    }

    fn watch_leases(&self, verifier: LeaseVerifier) {
        self.store.db.slot().verifiers.add(verifier);
    }
}
