//! Transactions of the application under a lock.
//!
//! [`CommitIn::commit_in`] runs work in a transaction on the application's connection, and proves the lock as the
//! last step before the commit. Its result says how the transaction ended: committed, rolled back, or unknown. The
//! guards of several names ([`LockGuards`](lockkeeper_core::LockGuards)) have this method as well, and so has an array of
//! guards: `[&hall, &seat].commit_in(…)`.
//!
//! ```
//! # #[cfg(feature = "rusqlite")] {
//! use lockkeeper::transactions::{CommitError, CommitIn};
//!
//! let keeper = lockkeeper::open("memory:")?;
//! let mut data = rusqlite::Connection::open_in_memory()?;
//! data.execute_batch("CREATE TABLE seat (id INTEGER, free INTEGER); INSERT INTO seat VALUES (42, 1)")?;
//!
//! let guard = keeper.lock("seat:42")?;
//! let sell = |transaction: &mut rusqlite::Transaction<'_>| {
//!     transaction.execute("UPDATE seat SET free = 0 WHERE id = 42 AND free = 1", ())
//! };
//! match guard.commit_in(&mut data, sell) {
//!     Ok(sold) => println!("committed: {sold} seat"),
//!     Err(CommitError::Work(error)) => println!("rolled back, because the work failed: {error}"),
//!     Err(CommitError::Lock(error)) => println!("rolled back, because the lock was lost: {error}"),
//!     Err(CommitError::Database(error)) => println!("rolled back by the database: {error}"),
//!     Err(CommitError::Unknown(error)) => println!("committed or not, look at the data: {error}"),
//! }
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Connections
//! | feature | connection | the work gets |
//! |---|---|---|
//! | `diesel` | every Diesel connection to PostgreSQL, MySQL, MariaDB or SQLite, also from a pool | `&mut` the connection |
//! | `mysql` | `mysql::Conn`, `mysql::PooledConn` | `&mut mysql::Transaction` |
//! | `postgres` | `postgres::Client`; that crate runs tokio inside | `&mut postgres::Transaction` |
//! | `rusqlite` | `rusqlite::Connection` | `&mut rusqlite::Transaction` |
//!
//! Pass what a pool returns as `&mut *pooled`. For another driver, implement [`Transactional`].
//!
//! Of these features, only `rusqlite` adds a C library, the bundled SQLite. Of Diesel, only the types are used.
//!
//! # How the lock is proved
//! If the lock is on the same MySQL, MariaDB or PostgreSQL server as the transaction, the transaction's last
//! statement proves the lock ([`LockGuard::commit_proof`](lockkeeper_core::LockGuard::commit_proof)). In every
//! other case the last step renews the guard in its store
//! ([`LockGuard::renew`](lockkeeper_core::LockGuard::renew)).
//!
//! If the locks are in a table of the data's database (`locks=table`), the proof locks the lock's row until the commit.
//! Nobody is granted the name before that. On other stores, the process can be stopped between the proof and the commit
//! for longer than the lease lasts. To be safe from that, too, write the guard's token beside the data, and refuse smaller tokens. The page
//! `docs/fencing-and-commit-proofs.md` says how.
//!
//! # A lock of the transaction itself
//! On PostgreSQL, [`LockInTransaction::lock_in_transaction`] takes the lock of a name for as long as a transaction
//! lives, without a guard.

// Shows on docs.rs which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod commit;
mod connection;
mod drivers;
mod error;
mod lock;

pub use commit::CommitIn;
pub use connection::{Database, OpenTransaction, Transactional};
#[cfg(feature = "diesel")]
pub use drivers::diesel::DieselKind;
pub use error::CommitError;
pub use lock::{LockInTransaction, TransactionLockError};
